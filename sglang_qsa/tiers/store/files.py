"""Write and read one record: whole and verified, or not at all.

A record is written under a temporary name in the directory of its final name, synced
as the policy says, and renamed; nobody ever sees a file that is still written to.
Threads may call everything here at the same time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import xxhash

from sglang_qsa.tiers.store.memory import Scratch, after, aligned, copy
from sglang_qsa.tiers.store.namespace import (
    FOLDERS,
    NAMESPACE_FILE,
    QUARANTINE,
    Namespace,
)
from sglang_qsa.tiers.store.record import (
    BLOCK,
    Damaged,
    Header,
    Kind,
    Label,
    Outcome,
    check_header,
    file_bytes,
    pack_header,
    padded,
)
from sglang_qsa.tiers.store.system import System

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY = ".tmp-"
_CHUNK = 4 << 20
"""Bytes moved by one call, a multiple of `BLOCK`; each thread keeps as many."""

_PARTS = 8
"""Parts of large records moved at the same time."""

Moved = TypeVar("Moved")


class Sync(StrEnum):
    """What survives a power cut. Whatever does not is a miss, never wrong bytes."""

    NONE = "none"
    """Nothing that the kernel had not written back by itself."""
    DATA = "data"
    """Contents are synced before they get their name; the newest names may be lost."""
    FULL = "full"
    """Names too, pages and checkpoint before the commit: what was reported as
    written is there."""


class RecordFiles:
    """The files of one namespace.

    Args:
        namespace: where they are and how long a record is.
        session: marks temporary names, so that they can be told to be left over.
        system: the calls to the operating system.
        sync: what is synced.
    """

    def __init__(
        self, namespace: Namespace, session: str, system: System, sync: Sync
    ) -> None:
        self.namespace = namespace
        self.session = session
        self.system = system
        self.sync = sync
        self._numbers = itertools.count()
        self._direct = _direct_flag(namespace, system)
        self._scratch = Scratch(_CHUNK)
        self._parts = ThreadPoolExecutor(_PARTS, "qsa-store-part")

    def close(self) -> None:
        """End the threads; nothing may be in progress."""
        self._parts.shutdown()

    def unique(self) -> str:
        """A name no other call of any process gets; digits of a key."""
        return f"{self.session}{next(self._numbers):012x}"

    def write(
        self, kind: Kind, key: str, payload: Buffer, *, order: int | None = None
    ) -> None:
        """Make a record visible under its key, in place of one already there.

        Args:
            payload: C-contiguous and writable, as pinned memory is; not changed.
            order: its place in the order of use, for a commit.
        Raises:
            OSError: nothing is visible that was not before.
        """
        path = self.namespace.file(kind, key)
        temporary = f"{os.path.dirname(path)}/{TEMPORARY}{self.unique()}"
        label = Label(self.namespace.name, kind, key)
        try:
            self._write_file(temporary, label, memoryview(payload).cast("B"))
            if order is not None:
                self.system.set_order(temporary, order)
            self.system.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                self.system.unlink(temporary)
            raise

    def read_into(self, kind: Kind, key: str, into: Buffer) -> None:
        """Copy a verified payload.

        Args:
            into: writable, C-contiguous, of the record's length. Undefined after a
                `Damaged` or an `OSError`.
        Raises:
            Damaged: the file is not the record that its name promises.
            OSError: it is absent or cannot be read.
        """
        with memoryview(into) as outer, outer.cast("B") as target:
            self._read_file(kind, key, target)

    def read_payload(self, kind: Kind, key: str) -> bytearray:
        """A verified payload whose length the header says; see `read_into`."""
        return self._read_file(kind, key, None)

    def present(self, kind: Kind, key: str) -> bool:
        """Whether a page or checkpoint lies there in its full length, unverified."""
        try:
            found = self.system.stat(self.namespace.file(kind, key))
        except OSError:
            return False
        return found.st_size == self.namespace.file_bytes(kind)

    def quarantine(self, kind: Kind, key: str) -> bool:
        """Set a record aside that failed verification; False where it stays."""
        path = self.namespace.file(kind, key)
        aside = f"{kind.name.lower()}.{key}.{self.unique()}"
        try:
            self.system.rename(path, f"{self.namespace.folder(QUARANTINE)}/{aside}")
        except OSError:
            return False
        return True

    def sync_names(self, *kinds: Kind) -> None:
        """Make what was renamed in these directories survive, if the policy says so."""
        if self.sync is Sync.FULL:
            for kind in kinds:
                self.system.sync_directory(self.namespace.folder(FOLDERS[kind]))

    def _write_file(self, path: str, label: Label, payload: memoryview) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | self._direct
        fd = self.system.open(path, flags)
        try:
            self._fill(fd, label, payload)
            # An intent is of no use to anyone once its process is dead.
            if self.sync is not Sync.NONE and label.kind is not Kind.INTENT:
                self.system.sync_file(fd)
        finally:
            self.system.close(fd)

    def _fill(self, fd: int, label: Label, payload: memoryview) -> None:
        """The header, which needs the digest, and the first part go last."""
        with self._moving(self._write_part, fd, payload, _CHUNK):
            digest = xxhash.xxh3_128(payload)
            digest.update(bytes(padded(len(payload)) - len(payload)))
        block = self._scratch.block
        block[:] = pack_header(label, len(payload), digest.digest())
        self._write_all(fd, [block, self._whole_blocks(payload[:_CHUNK])], 0)

    def _write_part(self, fd: int, payload: memoryview, start: int) -> None:
        part = self._whole_blocks(payload[start : start + _CHUNK])
        self._write_all(fd, [part], BLOCK + start)

    def _whole_blocks(self, part: memoryview) -> memoryview:
        """`part` itself, or a copy with padding in the memory of this thread."""
        if aligned(part):
            return part
        room = self._scratch.chunk[: padded(len(part))]
        copy(room, part)
        room[len(part) :] = bytes(len(room) - len(part))
        return room

    def _write_all(self, fd: int, data: Sequence[memoryview], offset: int) -> None:
        while data:
            done = self.system.write(fd, data, offset)
            offset += done
            data = after(data, done)

    def _read_file(self, kind: Kind, key: str, target: memoryview | None) -> bytearray:
        path = self.namespace.file(kind, key)
        fd = self.system.open(path, os.O_RDONLY | self._direct)
        try:
            length = self.system.size(fd)
            # O_DIRECT cannot read a tail that is not a whole block.
            if length < BLOCK or length % BLOCK:
                raise Damaged(Outcome.LENGTH)
            block = self._scratch.block
            self._read_all(fd, block, 0)
            header = check_header(block, Label(self.namespace.name, kind, key))
            if file_bytes(header.payload_bytes) != length:
                raise Damaged(Outcome.LENGTH)
            grown = bytearray(header.payload_bytes if target is None else 0)
            into = memoryview(grown) if target is None else target
            if header.payload_bytes != len(into):
                raise Damaged(Outcome.LENGTH)
            self._copy_payload(fd, header, into)
            return grown
        finally:
            self.system.close(fd)

    def _copy_payload(self, fd: int, header: Header, into: memoryview) -> None:
        """Digest the parts in order while later ones are still read."""
        digest = xxhash.xxh3_128()
        with self._moving(self._read_part, fd, into, 0) as parts:
            for start, moved in parts:
                padding = moved()
                digest.update(into[start : start + _CHUNK])
                digest.update(padding)
        if digest.digest() != header.digest:
            raise Damaged(Outcome.CHECKSUM)

    def _read_part(self, fd: int, into: memoryview, start: int) -> bytes:
        """Fill one part of `into`; what follows it up to the end of its last block."""
        part = into[start : start + _CHUNK]
        if aligned(part):
            self._read_all(fd, part, BLOCK + start)
            return b""
        room = self._scratch.chunk[: padded(len(part))]
        self._read_all(fd, room, BLOCK + start)
        copy(part, room[: len(part)])
        return bytes(room[len(part) :])

    @contextmanager
    def _moving(
        self,
        move: Callable[[int, memoryview, int], Moved],
        fd: int,
        memory: memoryview,
        first: int,
    ) -> Iterator[Iterator[tuple[int, Callable[[], Moved]]]]:
        """Move the parts of a payload from `first` on, several at a time.

        Gives the start of each part, in order, and a call that waits for it. Every part
        has ended when this ends, as the file is closed then.
        """
        starts = range(first, len(memory), _CHUNK)
        if len(starts) == 1:
            moved = move(fd, memory, first)
            yield iter([(first, lambda: moved)])
            return
        futures = [self._parts.submit(move, fd, memory, start) for start in starts]
        try:
            yield zip(starts, [future.result for future in futures], strict=True)
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def _read_all(self, fd: int, into: memoryview, offset: int) -> None:
        done = 0
        while done < len(into):
            count = self.system.read(fd, into[done:], offset + done)
            if count == 0:
                raise Damaged(Outcome.LENGTH)
            done += count


def _direct_flag(namespace: Namespace, system: System) -> int:
    """O_DIRECT, where the file system has it."""
    try:
        fd = system.open(
            f"{namespace.path}/{NAMESPACE_FILE}", os.O_RDONLY | os.O_DIRECT
        )
    except OSError:
        return 0
    system.close(fd)
    return os.O_DIRECT
