"""Triton kernel of `sparse_decode`: one row, one KV head and one part of the selection.

Attention over the selected tokens only, read in place. Tokens, their slots and K/V are
three dependent loads; each is carried one tile further ahead, so that the pipeliner
sees a single level and keeps whole tiles of K and V in flight.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _token_tile(tokens, first, last, length, BLOCK: tl.constexpr):
    """Selected tokens of a tile, -1 where the row or this split has none."""
    column = first + tl.arange(0, BLOCK)
    token = tl.load(tokens + column, mask=column < last, other=-1)
    return tl.where(token < length, token, -1)


@triton.jit
def _slot_tile(slots, token):
    """Slots of a tile's tokens, -1 where there is none."""
    return tl.load(slots + token, mask=token >= 0, other=-1).to(tl.int64)


@triton.jit
def _rows_of(cache, slot, stride):
    """K or V of a tile, zero where there is no token."""
    at = cache[None, :] + slot[:, None] * stride
    return tl.load(at, mask=(slot >= 0)[:, None], other=0.0)


@triton.jit
def sparse_decode_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    tokens,
    token_slots,
    row_requests,
    lengths,
    out,
    peaks,
    totals,
    size,
    softmax_scale,
    q_row_stride,
    q_head_stride,
    k_slot_stride,
    v_slot_stride,
    scale_slot_stride,
    tokens_stride,
    slots_stride,
    out_row_stride,
    tiles_per_split,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    FP8: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Attention of `GROUP` query heads over tiles of the selection.

    Unless `SPLIT`, `out` is the result, [rows, heads, DIM]. Else it is
    [rows, heads, splits, DIM] fp32 sums, to be combined by `peaks` and `totals`
    [rows, heads, splits].
    """
    row = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    head = tl.arange(0, GROUP_PADDED)
    real = head < GROUP
    head += kv_head * GROUP
    dim = tl.arange(0, DIM)

    length = tl.load(lengths + row)
    row_tokens = tokens + row * tokens_stride
    row_slots = token_slots + tl.load(row_requests + row).to(tl.int64) * slots_stride
    k_head = k_cache + kv_head * DIM + dim
    v_head = v_cache + kv_head * DIM + dim

    query = tl.load(
        q + row * q_row_stride + head[:, None] * q_head_stride + dim[None, :],
        mask=real[:, None],
        other=0.0,
    )
    factor = tl.full((GROUP_PADDED,), softmax_scale * LOG2_E, tl.float32)
    if FP8:
        # e4m3 converts to fp16 in one instruction for two values, exactly. A power of
        # two keeps the query, which came as bf16, inside the range of fp16.
        largest = tl.max(tl.abs(query.to(tl.float32)), 1)
        exponent = largest.to(tl.int32, bitcast=True) >> 23
        exponent = tl.minimum(tl.maximum(exponent, 1), 253)
        power = (exponent << 23).to(tl.float32, bitcast=True)
        inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        query = (query.to(tl.float32) * inverse[:, None]).to(tl.float16)
        factor *= power
    if INTERPRETED:
        query = query.to(tl.float32)

    peak = tl.full((GROUP_PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PADDED,), tl.float32)
    weighted = tl.zeros((GROUP_PADDED, DIM), tl.float32)
    # Values are summed in units of the largest value scale so far: they then fit fp16
    # whatever the scales are.
    unit = tl.full((), 1.0, tl.float32)
    if HAS_SCALES:
        unit = tl.full((), 1e-37, tl.float32)

    first = split * tiles_per_split * BLOCK
    last = tl.minimum(first + tiles_per_split * BLOCK, size)
    slot = _slot_tile(row_slots, _token_tile(row_tokens, first, last, length, BLOCK))
    token = _token_tile(row_tokens, first + BLOCK, last, length, BLOCK)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        live = slot >= 0
        if HAS_SCALES:
            at = slot * scale_slot_stride + kv_head
            key_scale = tl.load(k_scales + at, mask=live, other=0.0)
            value_scale = tl.load(v_scales + at, mask=live, other=0.0)
        keys = _rows_of(k_head, slot, k_slot_stride)
        values = _rows_of(v_head, slot, v_slot_stride)
        slot = _slot_tile(row_slots, token)
        token = _token_tile(row_tokens, start + 2 * BLOCK, last, length, BLOCK)
        if FP8:
            keys = keys.to(tl.float16)
            values = values.to(tl.float16)
        if INTERPRETED:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)
        score = tl.dot(query, tl.trans(keys)) * factor[:, None]
        if HAS_SCALES:
            score *= key_scale[None, :]
        score = tl.where(live[None, :], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        # A row without a live token so far has a peak of -inf, and -inf minus -inf
        # is not a number.
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight = tl.exp2(score - anchor[:, None])
        decay = tl.exp2(peak - anchor)
        total = total * decay + tl.sum(weight, 1)
        peak = new_peak
        if HAS_SCALES:
            new_unit = tl.maximum(unit, tl.max(value_scale))
            # Onto the values: scaling the weights would leave e4m3 in shared memory
            # until the product, from where it is read byte by byte.
            values *= (value_scale / new_unit).to(values.dtype)[:, None]
            decay *= unit / new_unit
            unit = new_unit
        weighted *= decay[:, None]
        rounded = weight.to(values.dtype)
        weighted = tl.dot(rounded, values, weighted)
        if not FP8:
            # bf16 keeps 8 bits of a weight; what it drops is multiplied too.
            rest = (weight - rounded.to(tl.float32)).to(values.dtype)
            weighted = tl.dot(rest, values, weighted)

    row_out = out + row * out_row_stride
    if SPLIT:
        part = head * tl.num_programs(1) + split
        target = row_out + part[:, None] * DIM + dim[None, :]
        tl.store(target, weighted * unit, mask=real[:, None])
        part += row * (KV_HEADS * GROUP) * tl.num_programs(1)
        tl.store(peaks + part, peak, mask=real)
        tl.store(totals + part, total, mask=real)
    else:
        result = weighted * (unit / tl.where(total > 0, total, 1.0))[:, None]
        target = row_out + head[:, None] * DIM + dim[None, :]
        tl.store(target, result, mask=real[:, None])
