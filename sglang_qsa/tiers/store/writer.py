"""Store a checkpoint with the pages of its prefix, so that it appears as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sglang_qsa.tiers.store.commits import Commits
from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.gc import Collector
from sglang_qsa.tiers.store.record import Kind, file_bytes
from sglang_qsa.tiers.store.references import as_payload
from sglang_qsa.tiers.store.stats import Tally

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_SLACK = 16
"""A collection frees this fraction of the budget more than is needed, and the next one
comes after as much was written: it lists the whole directory."""


class Stored(StrEnum):
    """What became of a checkpoint that was put."""

    WRITTEN = "written"
    PRESENT = "present"
    """All of it was there; it counts as used now."""
    INCOMPLETE = "incomplete"
    """A page that the caller did not have is not there either."""
    NO_ROOM = "no_room"
    """It does not fit in the budget beside what living writers are about to commit."""
    FAILED = "failed"
    """The system refused (I/O error, no space, permission)."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a checkpoint to store; without bytes where the store has them."""

    key: str
    payload: Buffer | None


class Writer:
    """Puts one checkpoint after the other, the pages of one at the same time.

    Args:
        each: calls a function on every page, in threads; ends when all have.
        budget_bytes: of the namespace; None for no limit.
    """

    def __init__(
        self,
        files: RecordFiles,
        commits: Commits,
        tally: Tally,
        *,
        each: Callable[[Callable[[Page], None], Sequence[Page]], object],
        budget_bytes: int | None,
    ) -> None:
        self._files = files
        self._commits = commits
        self._tally = tally
        self._each = each
        self._collector = Collector(files, tally)
        self._budget_bytes = budget_bytes
        self._allowance: int | None = None  # bytes to write until it collects again

    def put(self, key: str, checkpoint: Buffer, pages: Sequence[Page]) -> Stored:
        """See `DirectoryStore.submit_put`; keys and lengths were checked."""
        try:
            result = self._put(key, checkpoint, pages)
        except OSError as error:
            logger.warning("store %s: %s", self._files.namespace.path, error)
            result = Stored.FAILED
        self._tally.put(result)
        return result

    def _put(self, key: str, checkpoint: Buffer, pages: Sequence[Page]) -> Stored:
        names = tuple(page.key for page in pages)
        commit = self._commits.read(key)
        same = commit is not None and commit.pages == names
        if same and self._commits.whole(key, names):
            self._commits.touch(key)
            return Stored.PRESENT
        intent = self._files.unique()
        self._files.write(Kind.INTENT, intent, as_payload((key, *names)))
        try:
            if not self._make_room(key, names):
                return Stored.NO_ROOM
            for _ in range(_ATTEMPTS):
                if not self._write_missing(key, checkpoint, pages):
                    return Stored.INCOMPLETE
                self._commit(key, names)
                if self._commits.whole(key, names):
                    return Stored.WRITTEN
            self._files.system.unlink(self._files.namespace.file(Kind.COMMIT, key))
            return Stored.INCOMPLETE
        finally:
            with suppress(OSError):
                self._files.system.unlink(
                    self._files.namespace.file(Kind.INTENT, intent)
                )

    def _write_missing(
        self, key: str, checkpoint: Buffer, pages: Sequence[Page]
    ) -> bool:
        """Pages first; False where one is missing here and there."""
        missing = [
            page for page in pages if not self._files.present(Kind.PAGE, page.key)
        ]
        if any(page.payload is None for page in missing):
            return False
        self._each(self._write_page, missing)
        if not self._files.present(Kind.CHECKPOINT, key):
            self._write(Kind.CHECKPOINT, key, checkpoint)
        return True

    def _commit(self, key: str, names: Sequence[str]) -> None:
        """All records are durable before the entry that makes them visible."""
        self._files.sync_names(Kind.PAGE, Kind.CHECKPOINT)
        order = self._commits.next_use()
        self._files.write(Kind.COMMIT, key, as_payload(names), order=order)
        self._files.sync_names(Kind.COMMIT)
        self._tally.record(Kind.COMMIT, "written")

    def _write_page(self, page: Page) -> None:
        assert page.payload is not None
        self._write(Kind.PAGE, page.key, page.payload)

    def _write(self, kind: Kind, key: str, payload: Buffer) -> None:
        self._files.write(kind, key, payload)
        self._tally.record(kind, "written")
        self._tally.moved("written", self._files.namespace.file_bytes(kind))

    def _make_room(self, key: str, names: Sequence[str]) -> bool:
        """Keep the budget; False where this checkpoint would exceed it."""
        if self._budget_bytes is None:
            return True
        namespace = self._files.namespace
        entry = file_bytes(len(as_payload(names)))
        records = [(Kind.CHECKPOINT, key), *((Kind.PAGE, name) for name in names)]
        # Nothing is evicted for a checkpoint that cannot fit with all its pages.
        whole = entry + sum(namespace.file_bytes(kind) for kind, _ in records)
        if whole > self._budget_bytes:
            return False
        needed = entry + sum(
            namespace.file_bytes(kind)
            for kind, name in records
            if not self._files.present(kind, name)
        )
        if self._allowance is None or needed > self._allowance:
            self._allowance = self._collect(self._budget_bytes, needed)
        if needed > self._allowance:
            return False
        self._allowance -= needed
        return True

    def _collect(self, budget_bytes: int, needed: int) -> int:
        """Bytes that may be written before the next collection."""
        slack = budget_bytes // _SLACK
        limit = budget_bytes - needed
        used = self._collector.collect(limit, max(limit - slack, 0)).used_bytes
        return min(budget_bytes - used, needed + slack)
