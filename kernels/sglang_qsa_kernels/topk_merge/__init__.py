"""One selection out of those of all context-parallel ranks, whatever their order."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from sglang_qsa_kernels.checks import refuse, require
from sglang_qsa_kernels.topk import SELECTED_BLOCKS
from sglang_qsa_kernels.topk_merge.kernel import topk_merge_kernel

MAX_RANKS = 8
_CHUNK = 32


class Merged(NamedTuple):
    """The selection of a row in the blocks of the request, and this rank's part of it.

    `blocks` and `local_blocks` are [rows, 512] int32, ascending, -1 behind the last;
    `local_counts` is [rows] int32.
    """

    blocks: torch.Tensor
    local_blocks: torch.Tensor
    local_counts: torch.Tensor


def topk_merge(
    scores: torch.Tensor, blocks: torch.Tensor, *, rank: int, run_blocks: int
) -> Merged:
    """The 512 blocks that come first by score descending, block ascending.

    Each rank contributes its own 512 best in any order. The order is total, so the
    result is that of one selection over all blocks, the same on every rank and for
    every order of ranks.

    Args:
        scores: [ranks, rows, 512] fp32, all-gathered, no NaN.
        blocks: [ranks, rows, 512] int32 blocks of the request, -1 where there is none;
            a block is in one list only.
        rank: this rank.
        run_blocks: blocks that follow each other on one rank before the next rank's.
    Returns:
        `Merged`; a local block counts this rank's blocks only.
    Raises:
        ValueError: an argument is not as described.
    """
    _check(scores, blocks, rank, run_blocks)
    ranks, rows, _ = scores.shape
    out = torch.empty((rows, SELECTED_BLOCKS), dtype=torch.int32, device=scores.device)
    counts = torch.empty(rows, dtype=torch.int32, device=scores.device)
    merged = Merged(out, torch.empty_like(out), counts)
    if rows:
        topk_merge_kernel[(rows,)](
            scores,
            blocks,
            *merged,
            rows,
            rank,
            run_blocks,
            RANKS=ranks,
            RANKS_PADDED=triton.next_power_of_2(ranks),
            K=SELECTED_BLOCKS,
            CHUNK=_CHUNK,
            num_warps=8,
        )
    return merged


def _check(
    scores: torch.Tensor, blocks: torch.Tensor, rank: int, run_blocks: int
) -> None:
    shape = (None, None, SELECTED_BLOCKS)
    device = scores.device
    require(scores, "topk_merge: scores", shape, (torch.float32,), device)
    require(blocks, "topk_merge: blocks", scores.shape, (torch.int32,), device)
    for name, values in (("scores", scores), ("blocks", blocks)):
        if not values.is_contiguous():
            _refuse(name, f"strides {values.stride()}", "a contiguous tensor")
    ranks = scores.shape[0]
    if not 1 <= ranks <= MAX_RANKS:
        _refuse("scores", f"{ranks} ranks", f"1 to {MAX_RANKS}")
    if not 0 <= rank < ranks:
        _refuse("rank", str(rank), f"0 to {ranks - 1}")
    if run_blocks < 1:
        _refuse("run_blocks", str(run_blocks), "at least 1")


def _refuse(name: str, found: str, wanted: str) -> None:
    raise refuse(
        origin=f"topk_merge: {name}",
        found=found,
        wanted=wanted,
        way_out="pass it as the op's docstring describes it",
    )
