"""Triton kernel of `topk`: 512 of up to 512 · GROUP^LEVELS scores, one program a row.

A level holds one entry per group of `GROUP` entries of the level below: the largest of
them. The 512 best entries of a level, by value descending and then by position, cover
the 512 best entries of the level below: 512 groups that precede a group each hold an
entry that precedes all of that group's. So every level is a selection of 512 out of
512 · GROUP entries in registers, whatever the scores are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rank_of(value):
    """The position of a float among all floats, as an int64."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _float_at(rank):
    bits = rank.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _octaves(count, K: tl.constexpr):
    """About the binary logarithm of `count / K`: a float's bits read as an integer."""
    bits = tl.maximum(count.to(tl.float32), 0.5).to(tl.int32, bitcast=True)
    one = tl.full((), K, tl.float32).to(tl.int32, bitcast=True)
    return (bits - one).to(tl.float32) * (1.0 / (1 << 23))


@triton.jit
def threshold(value, floor, size, K: tl.constexpr, CAPACITY: tl.constexpr):
    """Floats `low`, `high` and the number of entries of `value` that are >= high.

    At least `K` are >= low, and fewer are >= high; either exactly `K` are >= low, or no
    float lies between the two. All are >= `floor`, except padding of -inf, and `size`
    is their number: with `K` of them the answer is `floor` at once.
    """
    low = _rank_of(floor)
    # Adding zero makes a maximum of -0.0 a +0.0, which compares equal.
    high = _rank_of(tl.max(value) + 0.0) + 1
    above = tl.zeros((), tl.int32)
    reached = tl.minimum(size, CAPACITY)
    # Guesses take the logarithm of the count for linear in the value. The excess of
    # the end that stays is halved, so that both close in, and every fourth step halves
    # the ranks instead, which bounds the number of steps.
    excess = _octaves(reached, K)
    lack = -_octaves(above, K)
    step = tl.zeros((), tl.int32)
    while (high - low > 1) & (reached != K):
        bottom = _float_at(low)
        span = _float_at(high - 1) - bottom
        guess = _rank_of(bottom + span * (excess / (excess + lack)))
        guess = tl.minimum(tl.maximum(guess, low + 1), high - 1)
        middle = tl.where(step % 4 == 3, (low + high) >> 1, guess)
        # Summed as floats: the compiler turns a sum of bits into longer code.
        passing = tl.where(value >= _float_at(middle), 1.0, 0.0)
        count = tl.sum(passing).to(tl.int32)
        enough = count >= K
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        reached = tl.where(enough, count, reached)
        above = tl.where(enough, above, count)
        octaves = _octaves(count, K)
        excess = tl.where(enough, octaves, excess * 0.5)
        lack = tl.where(enough, lack * 0.5, -octaves)
        step += 1
    return _float_at(low), _float_at(high), above


@triton.jit
def _count_and_keep(count, _word, next_count, next_word):
    """Scan that sums the first of two and leaves the second as it is."""
    return count + next_count, next_word


@triton.jit
def _halves(words):
    """The number of ones in either half of a word, in that half."""
    words -= (words >> 1) & 0x55555555
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return (words + (words >> 8)) & 0x00FF00FF


@triton.jit
def _narrow(entries, size, out, whole, K: tl.constexpr, GROUP: tl.constexpr):
    """Write to `out` the positions of the `K` best entries, ascending.

    Candidates are all `size` entries if `whole`, else the groups named in `out`.
    """
    lane = tl.arange(0, K)
    member = tl.arange(0, GROUP)
    named = lane >= tl.where(whole, K, 0)
    group = tl.where(named, tl.load(out + lane, mask=named, other=0), lane)
    position = group[:, None] * GROUP + member[None, :]
    # Padding follows every candidate in `position`, so it never wins a tie.
    value = tl.load(entries + position, mask=position < size, other=float("-inf"))
    floor = tl.min(tl.where(position < size, value, float("inf")))
    low, high, above = threshold(value, floor, size, K, K * GROUP)

    # A word per group: its entries above the threshold in the low half, those at it in
    # the high one. The words pass through the scan unchanged, because whatever comes
    # out of a scan has the layout in which scattered stores need no exchange.
    bit = 1 << member[None, :]
    tied = tl.where(value >= low, bit << 16, 0)
    words = tl.sum(tl.where(value >= high, bit, tied), 1)
    counts, words = tl.associative_scan((_halves(words), words), 0, _count_and_keep)
    before = counts - _halves(words)
    rank = before & 0xFFFF
    tie_rank = before >> 16
    # `out` was read above by other threads than those that write it now.
    tl.debug_barrier()
    for at in tl.static_range(GROUP):
        is_sure = (words >> at) & 1
        is_tied = (words >> (16 + at)) & 1
        take = is_sure | (is_tied & (tie_rank < K - above))
        target = out + rank + tl.minimum(tie_rank, K - above)
        tl.store(target, group * GROUP + at, mask=take == 1)
        rank += is_sure
        tie_rank += is_tied
    tl.debug_barrier()


@triton.jit
def topk_kernel(
    scores,
    maxima,
    coarse,
    lengths,
    starts,
    out,
    score_stride,
    maxima_stride,
    coarse_stride,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    LEVELS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
):
    """The `K` best of `scores[row, start : start + length]`; positions are relative."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    target = out + row * K
    if length <= K:
        index = tl.arange(0, K)
        tl.store(target + index, tl.where(index < length, index, -1))
        return
    base = scores + row * score_stride
    if HAS_STARTS:
        base += tl.load(starts + row)
    # Two conditions each: the compiler drops code behind a constant one.
    if LEVELS > 2:  # noqa: SIM102
        if length > K * GROUP * GROUP:
            groups = tl.cdiv(length, GROUP * GROUP)
            _narrow(coarse + row * coarse_stride, groups, target, True, K, GROUP)
    if LEVELS > 1:  # noqa: SIM102
        if length > K * GROUP:
            groups = tl.cdiv(length, GROUP)
            whole = length <= K * GROUP * GROUP
            _narrow(maxima + row * maxima_stride, groups, target, whole, K, GROUP)
    # Short rows in smaller tiles; the group size of a whole row means nothing else.
    if length <= K * GROUP // 4:
        _narrow(base, length, target, True, K, GROUP // 4)
    elif length <= K * GROUP // 2:
        _narrow(base, length, target, True, K, GROUP // 2)
    else:
        _narrow(base, length, target, length <= K * GROUP, K, GROUP)
