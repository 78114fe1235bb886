"""Rows to MXFP4. Contract: `quant_write.write_keys_mxfp4`."""

import triton
import triton.language as tl

from sglang_qsa_kernels.codec.kernel import (
    bf16_to_fp32,
    fp32_to_e2m1,
    group_exponent,
)


@triton.jit
def mxfp4_rows_kernel(
    x_ptr,
    slots_ptr,
    packed_ptr,
    exponent_ptr,
    rows,
    row_stride,
    packed_slot_stride,
    exponent_slot_stride,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    GROUPS: tl.constexpr = DIM // 32
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=0).to(tl.int64)
    written = slot > 0
    group = tl.arange(0, GROUPS)
    pair = tl.arange(0, 16)
    byte = group[:, None] * 16 + pair[None, :]
    of_row = x_ptr + row.to(tl.int64) * row_stride
    pairs = of_row[:, None, None] + 2 * byte[None, :, :]
    mask = written[:, None, None]
    low = bf16_to_fp32(tl.load(pairs, mask=mask, other=0.0))
    high = bf16_to_fp32(tl.load(pairs + 1, mask=mask, other=0.0))
    infinity = float("inf")
    size = tl.maximum(
        tl.where(tl.abs(low) < infinity, tl.abs(low), infinity),
        tl.where(tl.abs(high) < infinity, tl.abs(high), infinity),
    )
    exponent = group_exponent(tl.max(size, 2))
    codes = fp32_to_e2m1(low, exponent[:, :, None])
    codes |= fp32_to_e2m1(high, exponent[:, :, None]) << 4
    to_row = packed_ptr + slot * packed_slot_stride
    tl.store(to_row[:, None, None] + byte[None, :, :], codes.to(tl.uint8), mask=mask)
    to_group = exponent_ptr + slot * exponent_slot_stride
    tl.store(
        to_group[:, None] + group[None, :],
        exponent.to(tl.uint8),
        mask=written[:, None],
    )
