"""Triton kernel of `sparse_decode`: the sum of a row's splits, in their order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_kernel(
    sums,
    peaks,
    totals,
    out,
    splits,
    DIM: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    """One program per row and query head; a head without any token becomes zero."""
    at = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PADDED)
    dim = tl.arange(0, DIM)
    real = split < splits
    peak = tl.load(peaks + at * splits + split, mask=real, other=float("-inf"))
    total = tl.load(totals + at * splits + split, mask=real, other=0.0)
    highest = tl.max(peak)
    share = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    part = tl.load(
        sums + (at * splits + split[:, None]) * DIM + dim[None, :],
        mask=real[:, None],
        other=0.0,
    )
    whole = tl.sum(total * share)
    result = tl.sum(part * share[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + at * DIM + dim, result)
