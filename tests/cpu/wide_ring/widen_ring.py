"""Address a ring of two groups for each request, where upstream has one.

Upstream (sglang 0.5.23) keeps a request's index keys of an open group at
`position % ratio`. A verify step writes all drafts before it closes a group: those
behind the group's end overwrite accepted keys in front, and rejected ones stay there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

GROUPS = 2
"""Enough while a step has no more drafts than a group has tokens."""


def apply(module: ModuleType) -> None:
    def pending(
        *,
        token_to_batch_idx: torch.Tensor,
        req_pool_indices: torch.Tensor,
        sequence_lengths: torch.Tensor,
        logical_positions: torch.Tensor,
        compress_ratio: int,
        is_extend: bool,
    ) -> torch.Tensor:
        rows = token_to_batch_idx.long()[: logical_positions.numel()]
        places = logical_positions.long() % (GROUPS * compress_ratio)
        slots = req_pool_indices.long()[rows] * GROUPS * compress_ratio + places
        if not is_extend:
            return slots
        lengths = sequence_lengths.long()[rows]
        is_open = logical_positions >= lengths // compress_ratio * compress_ratio
        # Request 0 is nobody's: what needs no place goes there.
        return torch.where(is_open, slots, places)

    def group(
        *,
        group_end_positions: torch.Tensor,
        sequence_ids: torch.Tensor,
        compress_ratio: int,
        **requests: Any,
    ) -> torch.Tensor:
        members = torch.arange(1 - compress_ratio, 1)
        positions = (group_end_positions[:, None] + members).clamp_min(0)
        return pending(
            token_to_batch_idx=sequence_ids.repeat_interleave(compress_ratio),
            sequence_lengths=group_end_positions,
            logical_positions=positions.flatten(),
            compress_ratio=compress_ratio,
            is_extend=False,
            **requests,
        ).view_as(positions)

    module.build_pending_ring_slots = pending  # type: ignore[attr-defined]
    module.build_group_ring_slots = group  # type: ignore[attr-defined]
