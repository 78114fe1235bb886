"""Every call of the store to the operating system, in one object.

The store has no other way to a file, so that a test can put an object in its place
that refuses, forgets or dies at any call. There is no clock here: order of use is a
counter, and whether a process lives is a lock that its death releases.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence


class System:
    """The real one. All methods raise `OSError`."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; the bytes read, 0 at the end of the file."""
        return os.preadv(fd, [into], offset)

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> int:
        """Write one after the other; the bytes written, which may be fewer."""
        return os.pwritev(fd, data, offset)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def sync_file(self, fd: int) -> None:
        """Make the bytes of a file survive a power cut."""
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory survive a power cut."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)

    def set_order(self, path: str, order: int) -> None:
        """Write a place in the order of use where a file has its time of change."""
        os.utime(path, (order, order))

    def try_lock(self, fd: int) -> bool:
        """Take the lock of an open file, or learn that a living process has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
