"""The copies in plain PyTorch: without a GPU, and what the kernel must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sglang_qsa.layout import Unit
from sglang_qsa.tiers.host.plan import Plan
from sglang_qsa.tiers.host.strips import HostRecords

Rows = tuple[Unit, torch.Tensor, torch.Tensor]
"""Record numbers of the host and of the device."""


class ReferenceCopies:
    """Copies of all record kinds, done when a call returns.

    Args:
        kinds: each kind's strips, and its records in host memory.
        ends: last layer of each part of a load.
    """

    def __init__(self, kinds: Sequence[HostRecords], ends: Sequence[int]) -> None:
        self._kinds = {kind.unit: kind for kind in kinds}
        self._ends = ends

    def plan(self) -> Plan:
        return Plan()

    def submitted(self, plan: Plan) -> None:
        """Nothing is left to do with it."""

    def to_host(self, plan: Plan, _stream: Any) -> None:
        for unit, host, rows in self._rows(plan):
            kind = self._kinds[unit]
            for strip in kind.strips:
                kind.records[host, strip.offset : strip.end] = strip.rows[rows].cpu()

    def to_device(self, plan: Plan, part: int, _stream: Any) -> None:
        after = self._ends[part - 1] if part else -1
        for unit, host, rows in self._rows(plan):
            kind = self._kinds[unit]
            for strip in kind.strips:
                if after < strip.needed_by <= self._ends[part]:
                    data = kind.records[host, strip.offset : strip.end]
                    strip.rows[rows] = data.to(strip.rows.device)

    def _rows(self, plan: Plan) -> Iterator[Rows]:
        tokens = self._kinds[Unit.PAGE].tokens
        for moves in plan.moves:
            pages = torch.from_numpy(moves.host)[::tokens] // tokens
            yield Unit.PAGE, pages, moves.device[::tokens] // tokens
            for record, places in moves.checkpoints:
                for slots, position in places:
                    slot = slots[position : position + 1]
                    yield Unit.CHECKPOINT, torch.tensor([record]), slot
