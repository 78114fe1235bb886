"""Block selection: the 512 best scores of each row, exact and repeatable."""

from __future__ import annotations

from typing import Final

import torch
import triton

from sglang_qsa_kernels.checks import refuse, require
from sglang_qsa_kernels.topk.kernel import topk_kernel
from sglang_qsa_kernels.topk.maxima.kernel import maxima_kernel
from sglang_qsa_kernels.topk.tiles import tiles_for

SELECTED_BLOCKS: Final = 512
"""Blocks per row: QSA's budget of 2,048 tokens in groups of 4."""
GROUP: Final = 16
"""Scores under one group maximum."""
MAX_WIDTH: Final = SELECTED_BLOCKS * GROUP**3
"""Longest row: 2,097,152 blocks, a context of 8 million tokens."""

_LEVELS = 3


def topk(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None = None,
    *,
    maxima: torch.Tensor | None = None,
) -> torch.Tensor:
    """The 512 blocks of each row that come first by score descending, block ascending.

    That order is total, so the set is unique and the result the same in every call.
    Nothing outside a row's range is read, and nothing at all of rows that take every
    block. Lengths stay on the device: the call can be captured in a CUDA graph. The
    first three arguments and the result are those of SGLang's `fast_topk`.

    Args:
        scores: [rows, width] fp32, unit stride along a row, no NaN.
        lengths: [rows] int32, blocks visible to each row.
        row_starts: [rows] int32, column of a row's first block; zero if absent.
        maxima: [rows, >= width / 16 rounded up] fp32, the largest score of every 16
            blocks of a row, counted from its first; saves one pass over the scores
            where the scorer has them.
    Returns:
        [rows, 512] int32 blocks relative to the row's first one, ascending, -1 where
        a row has fewer.
    Raises:
        ValueError: an argument is not as described.
    Source: replaces sglang/kernels/ops/attention/fast_topk.py@0.5.23.
    """
    _check(scores, lengths, row_starts, maxima)
    rows, width = scores.shape
    out = torch.empty((rows, SELECTED_BLOCKS), dtype=torch.int32, device=scores.device)
    if not rows:
        return out
    levels = _levels(width)
    coarse = None
    if levels > 1 and (maxima is None or levels > 2):
        maxima, coarse = _maxima(scores, lengths, row_starts, levels)
    _select(scores, lengths, row_starts, maxima, coarse, out, levels)
    return out


def _levels(width: int) -> int:
    """Selections that a row of `width` scores needs."""
    return next(
        level
        for level in range(1, _LEVELS + 1)
        if width <= SELECTED_BLOCKS * GROUP**level
    )


def _maxima(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    levels: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Group maxima of all rows, and those of groups of groups for three levels."""
    rows, width = scores.shape
    tiles = tiles_for(scores.device)
    groups = triton.cdiv(width, GROUP)
    maxima = torch.empty((rows, groups), device=scores.device)
    coarse = None
    if levels > 2:
        shape = (rows, triton.cdiv(groups, GROUP))
        coarse = torch.empty(shape, device=scores.device)
    maxima_kernel[(rows, triton.cdiv(groups, tiles.maxima_groups))](
        scores,
        lengths,
        row_starts,
        maxima,
        coarse,
        scores.stride(0),
        maxima.stride(0),
        0 if coarse is None else coarse.stride(0),
        DIRECT=SELECTED_BLOCKS * GROUP,
        GROUP=GROUP,
        TILE=tiles.maxima_groups,
        HAS_STARTS=row_starts is not None,
        HAS_COARSE=coarse is not None,
        num_warps=tiles.maxima_warps,
    )
    return maxima, coarse


def _select(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    maxima: torch.Tensor | None,
    coarse: torch.Tensor | None,
    out: torch.Tensor,
    levels: int,
) -> None:
    topk_kernel[(scores.shape[0],)](
        scores,
        maxima,
        coarse,
        lengths,
        row_starts,
        out,
        scores.stride(0),
        0 if maxima is None else maxima.stride(0),
        0 if coarse is None else coarse.stride(0),
        K=SELECTED_BLOCKS,
        GROUP=GROUP,
        LEVELS=levels,
        HAS_STARTS=row_starts is not None,
        num_warps=tiles_for(scores.device).select_warps,
    )


def _check(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    maxima: torch.Tensor | None,
) -> None:
    device = scores.device
    require(scores, "topk: scores", (None, None), (torch.float32,), device)
    rows, width = scores.shape
    if width > MAX_WIDTH:
        raise refuse(
            origin="topk: scores",
            found=f"{width} columns",
            wanted=f"at most {MAX_WIDTH}",
            way_out="split the rows and merge the parts",
        )
    _check_stride("scores", scores)
    for name, values in (("lengths", lengths), ("row_starts", row_starts)):
        if values is not None:
            require(values, f"topk: {name}", (rows,), (torch.int32,), device)
            _check_stride(name, values)
    if maxima is not None:
        require(maxima, "topk: maxima", (rows, None), (torch.float32,), device)
        _check_stride("maxima", maxima)
        if maxima.shape[1] < triton.cdiv(width, GROUP):
            raise refuse(
                origin="topk: maxima",
                found=f"{maxima.shape[1]} groups",
                wanted=f"at least {triton.cdiv(width, GROUP)}",
                way_out="pass None to have them computed",
            )


def _check_stride(name: str, values: torch.Tensor) -> None:
    if values.shape[-1] > 1 and values.stride(-1) != 1:
        raise refuse(
            origin=f"topk: {name}",
            found=f"strides {values.stride()}",
            wanted="unit stride in the last dimension",
            way_out="pass a contiguous tensor",
        )
