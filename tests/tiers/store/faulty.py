"""Operating systems that refuse, kill or forget, in place of `store.system.System`."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sglang_qsa.tiers.store.system import System

Answer = TypeVar("Answer")


class Stepped(System):
    """Calls `step` before every call that can change or read the disk."""

    def step(self, call: str) -> None:
        raise NotImplementedError

    def open(self, path: str, flags: int) -> int:
        self.step("open")
        return super().open(path, flags)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        self.step("read")
        return super().read(fd, into, offset)

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> int:
        self.step("write")
        return super().write(fd, data, offset)

    def sync_file(self, fd: int) -> None:
        self.step("sync_file")
        super().sync_file(fd)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory")
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.step("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.step("unlink")
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self.step("mkdir")
        super().mkdir(path)

    def names(self, path: str) -> list[str]:
        self.step("names")
        return super().names(path)

    def stat(self, path: str) -> os.stat_result:
        self.step("stat")
        return super().stat(path)

    def set_order(self, path: str, order: int) -> None:
        self.step("set_order")
        super().set_order(path, order)


class Refusing(Stepped):
    """Answers some calls with an error, while it is armed.

    Args:
        code: errno of the error.
        calls: names of the calls that it can hit.
    """

    def __init__(self, code: int, calls: set[str]) -> None:
        self._code = code
        self._calls = calls
        self._left: range | None = None
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def armed(self, first: int, amount: int) -> Iterator[None]:
        """The calls from number `first` on are refused, `amount` of them."""
        self._left, self._count = range(first, first + amount), 0
        try:
            yield
        finally:
            self._left = None

    def step(self, call: str) -> None:
        if self._left is None or call not in self._calls:
            return
        with self._lock:
            number, self._count = self._count, self._count + 1
        if number in self._left:
            raise OSError(self._code, os.strerror(self._code))


CHANGES = {"write", "sync_file", "sync_directory", "rename", "unlink", "mkdir"}
"""Death before any other call is death before the next one of these."""


class Killed(BaseException):
    """The process is dead; nothing of the store may catch it."""


class Dying(Stepped):
    """Dies at the call number `at` that changes the disk. The dead call nothing.

    A write dies half done. `release` gives back what the kernel takes from a dead
    process.
    """

    def __init__(self, at: int, die: Callable[[], None]) -> None:
        self.changes = 0
        self._at = at
        self._die = die
        self._lock = threading.Lock()
        self._open: set[int] = set()

    def step(self, call: str) -> None:
        if self._is_over(changes=call in CHANGES):
            self._die()

    def open(self, path: str, flags: int) -> int:
        if self._is_over(changes=bool(flags & os.O_CREAT)):
            self._die()
        fd = System.open(self, path, flags)
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if not self._is_over(changes=False):
            self._open.discard(fd)
            super().close(fd)

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> int:
        if self._is_over(changes=True):
            if self.changes == self._at + 1:
                whole = sum(map(len, data))
                left = data[-1][: len(data[-1]) - whole // 8192 * 4096]
                half = [*data[:-1], left]
                with suppress(OSError):
                    System.write(self, fd, half, offset)
            self._die()
        return System.write(self, fd, data, offset)

    def release(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _is_over(self, *, changes: bool) -> bool:
        with self._lock:
            self.changes += changes and self.changes <= self._at
            return self.changes > self._at


def raise_killed() -> None:
    raise Killed


class PowerCut(Dying):
    """Remembers what was not synced, and loses some of it at `cut`.

    Of every name changed since its directory was synced, `cut` takes one of the states
    it went through, each name by itself; of every file written since it was synced,
    each block may be zeros, and its end may be missing. Real file systems lose less.

    Args:
        shadow: a directory on the same file system, for contents without a name.
    """

    def __init__(self, at: int, shadow: Path) -> None:
        super().__init__(at, raise_killed)
        self._shadow = shadow
        shadow.mkdir()
        self._book = threading.RLock()
        self._names: dict[str, list[Path | None]] = {}
        self._unsynced: set[Path] = set()
        self._content: dict[int, Path] = {}

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        if flags & os.O_CREAT:
            with self._book:
                kept = self._shadow / str(os.fstat(fd).st_ino)
                os.link(path, kept)
                self._content[fd] = kept
                self._unsynced.add(kept)
                self._becomes(path, kept)
        return fd

    def sync_file(self, fd: int) -> None:
        super().sync_file(fd)
        with self._book:
            self._unsynced.discard(self._content[fd])

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        with self._book:
            for name, states in self._names.items():
                if os.path.dirname(name) == path:
                    del states[:-1]

    def rename(self, source: str, target: str) -> None:
        with self._book:
            super().rename(source, target)
            self._becomes(target, self._names[source][-1])
            self._becomes(source, None)

    def unlink(self, path: str) -> None:
        with self._book:
            super().unlink(path)
            self._becomes(path, None)

    def _becomes(self, path: str, content: Path | None) -> None:
        self._names.setdefault(path, [None]).append(content)

    def cut(self, rng: random.Random) -> None:
        """Make the directory what a disk may hold after the power went."""
        for content in sorted(self._unsynced):
            _lose(content, rng)
        for name, states in self._names.items():
            with suppress(FileNotFoundError):
                os.unlink(name)
            left = rng.choice(states)
            if left is not None:
                os.link(left, name)


def _lose(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for start in range(0, len(data), 4096):
        if rng.random() < 0.4:
            data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    path.write_bytes(data)


class Between(Stepped):
    """Does something else before one call: another process was faster.

    Args:
        at: number of the call.
        action: what happens, once.
    """

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self._left = at
        self._action = action
        self._lock = threading.Lock()

    @property
    def happened(self) -> bool:
        return self._left < 0

    def step(self, call: str) -> None:
        with self._lock:
            self._left -= 1
            if self._left == -1:
                self._action()
