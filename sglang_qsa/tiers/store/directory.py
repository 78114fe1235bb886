"""The durable store of one rank: put a checkpoint with its pages, find it, get it.

The directory is the only state that lasts. Every collection reads it, and look-ups
follow it, so that several processes share it without a word between them, and a restart
is not special.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sglang_qsa.errors import LayoutMismatch, refusal
from sglang_qsa.layout import Layout
from sglang_qsa.tiers.store.commits import Commits
from sglang_qsa.tiers.store.files import RecordFiles, Sync
from sglang_qsa.tiers.store.lookup import Lookup
from sglang_qsa.tiers.store.namespace import Namespace
from sglang_qsa.tiers.store.prepare import prepare
from sglang_qsa.tiers.store.record import KEY, Damaged, Kind, Outcome
from sglang_qsa.tiers.store.references import set_aside
from sglang_qsa.tiers.store.session import Session
from sglang_qsa.tiers.store.stats import Tally
from sglang_qsa.tiers.store.system import System
from sglang_qsa.tiers.store.writer import Page, Stored, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_GETS = 4
"""Batches read at the same time: the last record of one does not hold up the next."""

_REFRESH_S = 1.0
"""After so long a look-up finds what other processes have stored."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Read:
    """One record to read into a buffer of its length."""

    kind: Kind
    key: str
    into: Buffer


class DirectoryStore:
    """Records of one rank of one deployment.

    Keys are lower-case hex digits that the caller derives from its hash chain, so that
    a key determines the bytes. Buffers are C-contiguous and writable, and stay
    untouched by others until the answer is there.

    Args:
        root: the store's directory; created if need be.
        layout: decides the lengths of records and, with `tp_rank`, the namespace.
        budget_bytes: of this namespace; None for no limit. Several processes on it
            may exceed it, by a sixteenth each.
        sync: what survives a power cut.
        in_flight: records read or written at the same time.
    Raises:
        ConfigError, StoreUnavailable: the directory cannot be this store.
    """

    def __init__(
        self,
        root: Path,
        layout: Layout,
        *,
        tp_rank: int = 0,
        budget_bytes: int | None = None,
        sync: Sync = Sync.DATA,
        in_flight: int = 8,
        system: System | None = None,
    ) -> None:
        system = system or System()
        self.namespace = Namespace.of(root, layout, tp_rank)
        self.tally = Tally()
        prepare(self.namespace, system)
        self._session = Session(self.namespace, system)
        self._files = RecordFiles(self.namespace, self._session.name, system, sync)
        cleaned = self._session.clean_up()
        self._commits = Commits(self._files, self.tally)
        self._put_whole = Writer(
            self._files,
            self._commits,
            self.tally,
            each=self._each,
            budget_bytes=budget_bytes,
        ).put
        self._in_flight = in_flight
        self._io = ThreadPoolExecutor(in_flight, "qsa-store-io")
        self._writer = ThreadPoolExecutor(1, "qsa-store-put")
        self._reader = ThreadPoolExecutor(_GETS, "qsa-store-get")
        self._lookup = Lookup(self._files, self._commits, self.tally)
        self._lookup.refresh()
        self._closing = threading.Event()
        self._follower = threading.Thread(
            target=self._follow, name="qsa-store-follow", daemon=True
        )
        self._follower.start()
        logger.info("store %s: %d left over files", self.namespace.path, cleaned)

    def close(self) -> None:
        """Finish what was submitted, then end the session."""
        self._closing.set()
        self._follower.join()
        for pool in (self._writer, self._reader, self._io):
            pool.shutdown()
        self._lookup.write_uses()
        self._files.close()
        self._session.close()

    # -- store -------------------------------------------------------------------

    def submit_put(
        self, key: str, checkpoint: Buffer, pages: Sequence[Page]
    ) -> Future[Stored]:
        """Store a checkpoint with all pages of its prefix, from the first token on.

        It becomes visible as a whole, or not at all. Never waits for the disk.

        Raises:
            LayoutMismatch: a key or a length is not of this layout.
        """
        self._check(Kind.CHECKPOINT, key, checkpoint)
        for page in pages:
            self._check(Kind.PAGE, page.key, page.payload)
        return self._writer.submit(self._put, key, checkpoint, pages)

    def put(self, key: str, checkpoint: Buffer, pages: Sequence[Page]) -> Stored:
        """`submit_put`, and wait."""
        return self.submit_put(key, checkpoint, pages).result()

    def _put(self, key: str, checkpoint: Buffer, pages: Sequence[Page]) -> Stored:
        self._lookup.write_uses()  # it may evict
        stored = self._put_whole(key, checkpoint, pages)
        if stored in (Stored.WRITTEN, Stored.PRESENT):
            self._lookup.add(key, (page.key for page in pages))
        return stored

    # -- look up -----------------------------------------------------------------

    def contains(self, key: str) -> bool:
        """Whether a checkpoint and all its pages are there, unverified."""
        try:
            commit = self._commits.read(key)
        except OSError:
            return False
        if commit is None or not self._commits.whole(key, commit.pages):
            return False
        self._lookup.add(key, commit.pages)
        return True

    def longest_prefix(self, keys: Sequence[str]) -> int:
        """Pages up to the longest boundary that can be served; 0 for none.

        Found in memory and confirmed by the disk, so that the scheduler's thread may
        call it. What another process stored is found after `refresh`, which a thread of
        the store calls every second.

        Args:
            keys: of consecutive pages; the chain may begin before them. The key of a
                boundary is that of its last page.
        """
        return self._lookup.longest_prefix(keys)

    def refresh(self) -> None:
        """Find what other processes have stored until now, and tell them what was found
        here, so that they evict it later."""
        self._lookup.refresh()
        self._lookup.write_uses()

    def _follow(self) -> None:
        while not self._closing.wait(_REFRESH_S):
            self.refresh()

    def missing_pages(self, page_keys: Sequence[str]) -> list[int]:
        """Numbers of the pages in `page_keys` that are not there, in order.

        A page that is there may be evicted before it is put without bytes; the put
        then answers `INCOMPLETE`.
        """
        return [
            number
            for number, key in enumerate(page_keys)
            if not self._files.present(Kind.PAGE, key)
        ]

    # -- load --------------------------------------------------------------------

    def submit_get(self, reads: Sequence[Read]) -> Future[list[Outcome]]:
        """Read and verify records, several at a time. Never waits for the disk.

        What fails verification is set aside. Only after `HIT` is a buffer defined.

        Raises:
            LayoutMismatch: a key or a length is not of this layout.
        """
        for read in reads:
            self._check(read.kind, read.key, read.into)
        return self._reader.submit(self._get, reads)

    def get(self, reads: Sequence[Read]) -> list[Outcome]:
        """`submit_get`, and wait."""
        return self.submit_get(reads).result()

    def _get(self, reads: Sequence[Read]) -> list[Outcome]:
        outcomes = self._each(self._read, reads)
        for read, outcome in zip(reads, outcomes, strict=True):
            if read.kind is Kind.PAGE and outcome is not Outcome.HIT:
                self._lookup.lose(read.key)
        counts = Counter(
            (read.kind, outcome) for read, outcome in zip(reads, outcomes, strict=True)
        )
        for (kind, outcome), amount in counts.items():
            self.tally.record(kind, outcome, amount)
            if outcome is Outcome.HIT:
                self.tally.moved("read", amount * self.namespace.file_bytes(kind))
        return outcomes

    def _read(self, read: Read) -> Outcome:
        try:
            self._files.read_into(read.kind, read.key, read.into)
        except FileNotFoundError:
            return Outcome.ABSENT
        except OSError:
            return Outcome.UNREADABLE
        except Damaged as damage:
            set_aside(self._files, self.tally, read.kind, read.key, damage.outcome)
            return damage.outcome
        return Outcome.HIT

    def _each(
        self, function: Callable[[Item], Answer], items: Sequence[Item]
    ) -> list[Answer]:
        """All of them end before the first failure is raised.

        A thread takes the next item when it is done with one: a task per item would
        keep the interpreter from the scheduler thread for milliseconds.
        """
        answers: dict[int, Answer] = {}
        numbers = iter(range(len(items)))

        def work() -> None:
            for number in numbers:
                answers[number] = function(items[number])

        threads = min(self._in_flight, len(items))
        futures = [self._io.submit(work) for _ in range(threads)]
        wait(futures)
        for future in futures:
            future.result()
        return [answers[number] for number in range(len(items))]

    def _check(self, kind: Kind, key: str, payload: Buffer | None) -> None:
        wanted = self.namespace.payload_bytes(kind)
        found = wanted if payload is None else memoryview(payload).nbytes
        if found != wanted or not KEY.fullmatch(key):
            raise LayoutMismatch(
                refusal(
                    found=f"{found} bytes under key {key!r}",
                    wanted=f"{wanted} bytes under a key of 16 to 128 hex digits",
                    origin=f"{kind.name.lower()} record of {self.namespace.name}",
                    way_out="take key and length from the layout of this server",
                )
            )
