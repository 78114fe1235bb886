"""What `ring_slots` computes, in plain torch."""

from __future__ import annotations

import torch


def ring_slots_reference(
    positions: torch.Tensor, requests: torch.Tensor, *, ratio: int, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots [rows] int64 and members [rows, ratio] int32, as `ring_slots` has them."""
    width = groups * ratio
    base, position = requests.long() * width, positions.long()
    back = torch.arange(ratio - 1, -1, -1, device=positions.device)
    members = (position[:, None] - back).clamp_min(0)
    return base + position % width, (base[:, None] + members % width).int()
