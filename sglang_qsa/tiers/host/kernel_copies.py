"""The copies by one kernel that reads and writes pinned memory over the link.

A backup is one launch and a load one for each of its parts, whatever the number of
records. The table of them is filled while they are ordered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from sglang_qsa.layout import Unit
from sglang_qsa.tiers.host.moves import Moves, Place
from sglang_qsa.tiers.host.plan import Plan
from sglang_qsa.tiers.host.strips import HostRecords, in_pieces
from sglang_qsa_kernels.page_copy import (
    INDEX_BYTES,
    LARGEST_PIECE,
    MOVE_FIELDS,
    prepare,
)

_ORDER = (Unit.PAGE, Unit.CHECKPOINT)
_PLANS = 16


class KernelPlan(Plan):
    """With the kernel's table, in pinned memory, which the kernel reads where it is.

    Args:
        pages, checkpoints: moves of each that it has room for.
        tokens: indices of a page.
    """

    def __init__(self, pages: int, checkpoints: int, tokens: int) -> None:
        super().__init__()
        shape = (1 + pages + checkpoints, MOVE_FIELDS)
        self._table = torch.zeros(shape, dtype=torch.int64).pin_memory()
        self.address = self._table.data_ptr()
        rows = self._table.numpy()
        self._host, self._device, _ = rows[1 : 1 + pages].T
        self._numbers = rows.data.cast("B").cast("q")
        """All of it, row by row."""
        self._tokens = tokens
        self._first_checkpoint = pages
        self.empty()

    def empty(self) -> None:
        """Back to no moves."""
        self.moves.clear()
        numbers = self._numbers
        numbers[0], numbers[1], numbers[2] = 0, 0, self._first_checkpoint

    def add(self, moves: Moves) -> None:
        super().add(moves)
        numbers, start = self._numbers, self._numbers[0]
        if pages := len(moves.host) // self._tokens:
            end, step = start + pages, self._tokens * INDEX_BYTES
            first = moves.device.data_ptr()
            self._host[start:end] = moves.host[:: self._tokens]
            self._device[start:end] = np.arange(first, first + pages * step, step)
            numbers[0] = end
        at = (1 + self._first_checkpoint + numbers[1]) * MOVE_FIELDS
        for record, places in moves.checkpoints:
            numbers[at] = record
            numbers[at + 1] = _address(places[0])
            numbers[at + 2] = _address(places[1]) if len(places) > 1 else 0
            at += MOVE_FIELDS
        numbers[1] += len(moves.checkpoints)


class KernelCopies:
    """Copies of all record kinds.

    Args:
        kinds: each kind's strips, and its records in pinned memory.
        ends: last layer of each part of a load.
    """

    def __init__(self, kinds: Sequence[HostRecords], ends: Sequence[int]) -> None:
        pages, checkpoints = sorted(kinds, key=lambda kind: _ORDER.index(kind.unit))
        device = pages.strips[0].rows.device
        pieces, parts = _tables((pages, checkpoints), ends)
        self._pieces = torch.tensor(pieces, dtype=torch.int64, device=device)
        self.parts = torch.tensor(parts, dtype=torch.int64, device=device)
        self._everything = len(ends)
        self._load = prepare(self._pieces, self.parts, to_host=False)
        self._store = prepare(self._pieces, self.parts, to_host=True)
        # No row of the device is in two moves of one submission.
        self._most = len(pages.strips[0].rows), len(checkpoints.strips[0].rows)
        self._tokens = pages.tokens
        self._plans = deque(self._new_plan() for _ in range(_PLANS))

    def plan(self) -> KernelPlan:
        """The oldest, or one more where all are under way: pinning its table takes the
        scheduler a moment, waiting for a copy would take it longer."""
        if not self._plans or not self._plans[0].ended.query():
            return self._new_plan()
        plan = self._plans.popleft()
        plan.empty()
        return plan

    def to_host(self, plan: KernelPlan, stream: torch.cuda.Stream) -> None:
        self._store(plan.address, self._everything, stream.cuda_stream)

    def to_device(self, plan: KernelPlan, part: int, stream: torch.cuda.Stream) -> None:
        self._load(plan.address, part, stream.cuda_stream)

    def submitted(self, plan: KernelPlan) -> None:
        self._plans.append(plan)

    def _new_plan(self) -> KernelPlan:
        pages, checkpoints = self._most
        return KernelPlan(pages, checkpoints, self._tokens)


def _address(place: Place) -> int:
    slots, position = place
    return slots.data_ptr() + position * INDEX_BYTES


def _tables(
    kinds: Sequence[HostRecords], ends: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """Pieces and parts of `page_copy`; the part after the last is everything."""
    pieces: list[tuple[int, ...]] = []
    parts: list[list[int]] = [[] for _ in (*ends, None)]
    for kind in kinds:
        start = len(pieces)
        found = list(in_pieces(kind, LARGEST_PIECE))
        pieces += [piece for _, piece in found]
        needed_by = [layer for layer, _ in found]
        bounds = [start] + [start + bisect_right(needed_by, end) for end in ends]
        for part in range(len(ends)):
            parts[part] += bounds[part : part + 2]
        parts[-1] += [start, len(pieces)]
    return pieces, parts
