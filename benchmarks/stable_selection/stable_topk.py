"""Replace upstream's block selection by a stable sort, for comparisons of bits.

Upstream's `fast_topk` (sglang 0.5.23) breaks ties by atomics: two device hits of one
prompt select other blocks among equals and differ in their log-probabilities. With a
stable selection a restored prefix can be required to give the very same bits.
"""

from __future__ import annotations

from types import ModuleType

import torch


def apply(module: ModuleType) -> None:
    """Put the stable selection in place of the kernel; called at its import."""
    setattr(module, "fast_topk", stable_topk)  # noqa: B010


def stable_topk(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The `topk` best blocks of each row, best first, ties by lowest index.

    Args:
        scores: `[rows, blocks]` fp32.
        lengths: `[rows]` int32, blocks that belong to a row.
        topk: how many to select.
        row_starts: `[rows]` int32, first block of each row; default 0.
    Returns:
        `[rows, topk]` int32, relative to the row's start, -1 behind the last one. A
        row that fits is returned whole without reading its scores, as upstream does.
    """
    starts = torch.zeros_like(lengths) if row_starts is None else row_starts
    blocks = torch.arange(scores.shape[1], device=scores.device)
    inside = (blocks >= starts[:, None]) & (blocks < (starts + lengths)[:, None])
    ranked = torch.where(inside, scores, float("-inf"))
    order = torch.sort(ranked, dim=1, descending=True, stable=True).indices
    selected = torch.nn.functional.pad(
        order[:, :topk] - starts[:, None], (0, max(0, topk - order.shape[1]))
    )
    places = torch.arange(topk, device=scores.device).expand_as(selected)
    selected = torch.where(lengths[:, None] <= topk, places, selected)
    selected = torch.where(places < lengths[:, None], selected, -1)
    return selected.to(torch.int32)
