"""The copies by one kernel that reads and writes pinned memory over the link.

A backup is one launch and a load one for each of its parts, whatever the number of
records: on the scheduler's thread only a small table grows with them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from sglang_qsa.layout import Unit
from sglang_qsa.tiers.host.moves import Moves, Place
from sglang_qsa.tiers.host.plan import Plan
from sglang_qsa.tiers.host.strips import HostRecords, in_pieces
from sglang_qsa_kernels.page_copy import LARGEST_PIECE, MOVE_FIELDS, prepare

_ORDER = (Unit.PAGE, Unit.CHECKPOINT)
_PLANS = 16


class KernelPlan(Plan):
    """With the kernel's table, which is filled in pinned memory and sent."""

    def __init__(self, most: int, device: torch.device) -> None:
        super().__init__(None)
        shape = (1 + most, MOVE_FIELDS)
        self._pinned = torch.zeros(shape, dtype=torch.int64).pin_memory()
        self.table = torch.zeros(shape, dtype=torch.int64, device=device)
        self._sizes = [min(2 << power, 1 + most) for power in range(most.bit_length())]
        self._parts = [(self.table[:n], self._pinned[:n]) for n in self._sizes]
        rows = self._pinned.numpy()
        self.host, self.first, self.second = rows.T
        self.numbers = rows.data.cast("B").cast("q")
        """All of it, row by row."""

    def send(self, rows: int) -> None:
        """Copy `rows` of the table and maybe more, on the current stream."""
        table, pinned = self._parts[bisect_left(self._sizes, rows)]
        table.copy_(pinned, non_blocking=True)


class KernelCopies:
    """Copies of all record kinds.

    Args:
        kinds: each kind's strips, and its records in pinned memory.
        ends: last layer of each part of a load.
    """

    def __init__(self, kinds: Sequence[HostRecords], ends: Sequence[int]) -> None:
        kinds = sorted(kinds, key=lambda kind: _ORDER.index(kind.unit))
        self._device = kinds[0].strips[0].rows.device
        self._tokens = kinds[0].tokens
        pieces, parts = _tables(kinds, ends)
        table = torch.tensor(pieces, dtype=torch.int64, device=self._device)
        self.parts = torch.tensor(parts, dtype=torch.int64, device=self._device)
        self._everything = len(ends)
        self._load = prepare(table, self.parts, to_host=False)
        self._store = prepare(table, self.parts, to_host=True)
        self._most = sum(min(len(k.records), len(k.strips[0].rows)) for k in kinds)
        indices = torch.empty(self._most * self._tokens, dtype=torch.int64)
        step = indices.nbytes // self._most
        self._steps = np.arange(0, indices.nbytes, step)
        self._step = step // self._tokens
        self._plans = deque(self._new_plan() for _ in range(_PLANS))

    def plan(self, moves: Moves) -> KernelPlan:
        """Send the kernel's table to the device, on the current stream."""
        plan = self._free_plan()
        plan.moves = moves
        plan.send(self._fill(plan, moves))
        self._plans.append(plan)
        return plan

    def to_host(self, plan: KernelPlan, stream: torch.cuda.Stream) -> None:
        self._store(plan.table, self._everything, stream.cuda_stream)

    def to_device(self, plan: KernelPlan, part: int, stream: torch.cuda.Stream) -> None:
        self._load(plan.table, part, stream.cuda_stream)

    def _new_plan(self) -> KernelPlan:
        return KernelPlan(self._most, self._device)

    def _free_plan(self) -> KernelPlan:
        """The oldest, or one more where all are under way: pinning its table takes the
        scheduler a moment, waiting for a copy would take it longer."""
        if self._plans[0].ended.query():
            return self._plans.popleft()
        return self._new_plan()

    def _fill(self, plan: KernelPlan, moves: Moves) -> int:
        """Write the table; few calls, see `moves`. Returns its rows."""
        tokens, numbers = self._tokens, plan.numbers
        pages = len(moves.host) // tokens
        if pages:
            end = 1 + pages
            np.floor_divide(moves.host[::tokens], tokens, out=plan.host[1:end])
            first = moves.device.data_ptr()
            np.add(self._steps[:pages], first, out=plan.first[1:end])
            plan.second[1:end] = 0
        numbers[0], numbers[1] = pages, len(moves.checkpoints)
        at = (1 + pages) * MOVE_FIELDS
        for record, places in moves.checkpoints:
            numbers[at] = record
            numbers[at + 1] = self._address(places[0])
            numbers[at + 2] = self._address(places[1]) if len(places) > 1 else 0
            at += MOVE_FIELDS
        return at // MOVE_FIELDS

    def _address(self, place: Place) -> int:
        slots, position = place
        return slots.data_ptr() + position * self._step


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
