"""Triton kernel of `topk_merge`: the selection of all ranks out of theirs, by row."""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_qsa_kernels.topk.kernel import threshold


@triton.jit
def _last_taken(block, tied, wanted):
    """The highest of the `wanted` lowest blocks among the tied ones."""
    low = tl.full((), -1, tl.int32)
    high = tl.max(tl.where(tied, block, 0))
    count = tl.sum(tied.to(tl.int32))
    while (high - low > 1) & (count != wanted):
        middle = low + (high - low) // 2
        below = tl.sum((tied & (block <= middle)).to(tl.int32))
        enough = below >= wanted
        high = tl.where(enough, middle, high)
        count = tl.where(enough, below, count)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def topk_merge_kernel(
    scores,
    blocks,
    out,
    local_out,
    counts,
    rows,
    rank,
    run_blocks,
    RANKS: tl.constexpr,
    RANKS_PADDED: tl.constexpr,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One row. A rank owns every `RANKS`-th run of `run_blocks` blocks."""
    NONE: tl.constexpr = 0x7FFFFFFF
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, RANKS_PADDED * K)
    source = ((lane // K).to(tl.int64) * rows + row) * K + lane % K
    given = lane < RANKS * K
    block = tl.load(blocks + source, mask=given, other=-1)
    given &= block >= 0
    score = tl.load(scores + source, mask=given, other=float("-inf"))
    size = tl.sum(given.to(tl.int32))

    # Rows that take everything leave the loop of `threshold` at once.
    floor = tl.min(tl.where(given, score, float("inf")))
    low, high, above = threshold(score, floor, tl.maximum(size, K), K, RANKS_PADDED * K)
    sure = given & (score >= high)
    tied = given & (score >= low) & (score < high)
    wanted = tl.minimum(K, size) - above
    take = sure | (tied & (block <= _last_taken(block, tied, wanted)))

    # The order of this list is the order of the ranks. Counting the smaller blocks of
    # each removes it.
    taken = take.to(tl.int32)
    found = tl.sum(taken)
    target = out + row * K
    tl.store(target + tl.cumsum(taken, 0) - taken, block, mask=take)
    index = tl.arange(0, K)
    tl.store(target + index, tl.full((K,), NONE, tl.int32), mask=index >= found)
    tl.debug_barrier()
    chosen = tl.load(target + index)
    place = tl.zeros((K,), tl.float32)
    for first in tl.range(0, K, CHUNK):
        other = tl.load(target + first + tl.arange(0, CHUNK))
        smaller = other[:, None] < chosen[None, :]
        place += tl.sum(tl.where(smaller, 1.0, 0.0), 0)
    tl.debug_barrier()
    tl.store(target + place.to(tl.int32), chosen, mask=index < found)
    tl.store(target + index, tl.full((K,), -1, tl.int32), mask=index >= found)
    tl.debug_barrier()
    chosen = tl.load(target + index)

    run = chosen // run_blocks
    mine = ((chosen >= 0) & (run % RANKS == rank)).to(tl.int32)
    local = run // RANKS * run_blocks + chosen % run_blocks
    here = tl.sum(mine)
    local_target = local_out + row * K
    tl.store(local_target + tl.cumsum(mine, 0) - mine, local, mask=mine == 1)
    tl.store(local_target + index, tl.full((K,), -1, tl.int32), mask=index >= here)
    tl.store(counts + row, here)
