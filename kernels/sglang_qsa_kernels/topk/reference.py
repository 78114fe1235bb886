"""What `topk` computes, in plain torch."""

from __future__ import annotations

import torch

_CHUNK_ELEMENTS = 1 << 25


def topk_reference(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None = None,
    *,
    count: int = 512,
) -> torch.Tensor:
    """The first `count` of a stable descending sort of each row, in ascending order.

    Args:
        scores: [rows, width] fp32.
        lengths: [rows] int32.
        row_starts: [rows] int32, column of a row's first block; zero if absent.
        count: entries to select.
    Returns:
        [rows, count] int32 relative to the row's first block, -1 where there is none.
    """
    rows, width = scores.shape
    if row_starts is None:
        row_starts = torch.zeros_like(lengths)
    chunk_rows = max(1, _CHUNK_ELEMENTS // max(width, 1))
    out = scores.new_full((rows, count), -1, dtype=torch.int32)
    for first in range(0, rows, chunk_rows):
        part = slice(first, first + chunk_rows)
        chosen = _rows(scores[part], lengths[part], row_starts[part], count)
        out[part, : chosen.shape[1]] = chosen
    return out


def maxima_reference(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None = None,
    *,
    group: int = 16,
) -> torch.Tensor:
    """[rows, width / group rounded up] fp32, the largest score of every group."""
    if row_starts is None:
        row_starts = torch.zeros_like(lengths)
    visible = _shifted(scores, lengths, row_starts)
    missing = -visible.shape[1] % group
    padded = torch.nn.functional.pad(visible, (0, missing), value=-torch.inf)
    largest: torch.Tensor = padded.unflatten(1, (-1, group)).amax(2)
    return largest


def _rows(
    scores: torch.Tensor, lengths: torch.Tensor, row_starts: torch.Tensor, count: int
) -> torch.Tensor:
    visible = _shifted(scores, lengths, row_starts)
    # Padding is -inf and comes after every visible block, also in a stable sort.
    order = torch.sort(visible, dim=1, descending=True, stable=True).indices
    order = order[:, :count]
    none = visible.shape[1]
    order = torch.where(order < lengths[:, None], order, none).sort(1).values
    return torch.where(order < none, order, -1).int()


def _shifted(
    scores: torch.Tensor, lengths: torch.Tensor, row_starts: torch.Tensor
) -> torch.Tensor:
    """Scores counted from each row's first block, -inf behind the last."""
    column = torch.arange(scores.shape[1], device=scores.device)
    if row_starts.any():
        source = (row_starts[:, None] + column).clamp_(max=scores.shape[1] - 1)
        scores = scores.gather(1, source)
    return scores.masked_fill(column >= lengths[:, None], -torch.inf)
