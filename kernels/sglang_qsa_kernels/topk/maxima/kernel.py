"""Triton kernel of `topk`: the largest score of each group, and of groups of groups."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def maxima_kernel(
    scores,
    lengths,
    starts,
    maxima,
    coarse,
    score_stride,
    maxima_stride,
    coarse_stride,
    DIRECT: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_COARSE: tl.constexpr,
):
    """One program per row and `TILE` groups; rows up to `DIRECT` scores need none."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    length = tl.load(lengths + row)
    first = tile * TILE
    if (length <= DIRECT) | (first * GROUP >= length):
        return
    base = scores + row * score_stride
    if HAS_STARTS:
        base += tl.load(starts + row)
    group = first + tl.arange(0, TILE)
    position = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    score = tl.load(base + position, mask=position < length, other=float("-inf"))
    largest = tl.max(score, 1)
    groups = tl.cdiv(length, GROUP)
    tl.store(maxima + row * maxima_stride + group, largest, mask=group < groups)
    if HAS_COARSE:
        largest = tl.max(tl.reshape(largest, (TILE // GROUP, GROUP)), 1)
        group = first // GROUP + tl.arange(0, TILE // GROUP)
        groups = tl.cdiv(groups, GROUP)
        tl.store(coarse + row * coarse_stride + group, largest, mask=group < groups)
