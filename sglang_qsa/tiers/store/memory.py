"""Memory that O_DIRECT can move, and copies that hold up no other thread."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence

from sglang_qsa.tiers.store.record import BLOCK


class Scratch(threading.local):
    """Page-aligned memory of one thread, for a header and for one part of a payload."""

    def __init__(self, part: int) -> None:
        self.block = memoryview(mmap.mmap(-1, BLOCK))
        self.chunk = memoryview(mmap.mmap(-1, part))


def after(data: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of buffers in a row when their first `done` bytes are dealt with."""
    left = []
    for part in data:
        if done < len(part):
            left.append(part[done:])
        done = max(0, done - len(part))
    return left


def aligned(memory: memoryview) -> bool:
    """Whether O_DIRECT can move it as it is."""
    return not (len(memory) % BLOCK or _address(memory) % BLOCK)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy `source` to the start of `target` without the interpreter lock, which a
    slice assignment would hold against the scheduler thread."""
    ctypes.memmove(_address(target), _address(source), len(source))


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
