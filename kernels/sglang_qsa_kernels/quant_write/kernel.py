"""Rows to e4m3 with a scale each. Contract: `quant_write`."""

import triton
import triton.language as tl

from sglang_qsa_kernels.codec.kernel import (
    bf16_to_fp32,
    fp32_to_e4m3,
    row_scale,
)


@triton.jit
def e4m3_rows_kernel(
    a_ptr,
    b_ptr,
    slots_ptr,
    a_codes_ptr,
    b_codes_ptr,
    a_scale_ptr,
    b_scale_ptr,
    rows,
    a_token_stride,
    b_token_stride,
    codes_slot_stride,
    scale_slot_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """BLOCK rows (token, head) of `a`, or of `b` in the second half of the grid."""
    x_ptr = a_ptr
    codes_ptr = a_codes_ptr
    scale_ptr = a_scale_ptr
    token_stride = a_token_stride
    if tl.program_id(1) == 1:
        x_ptr = b_ptr
        codes_ptr = b_codes_ptr
        scale_ptr = b_scale_ptr
        token_stride = b_token_stride
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = (row // HEADS).to(tl.int64)
    head = row % HEADS
    slot = tl.load(slots_ptr + token, mask=row < rows, other=0).to(tl.int64)
    written = slot > 0
    d = tl.arange(0, DIM)
    of_row = x_ptr + token * token_stride + head * DIM
    x = tl.load(of_row[:, None] + d[None, :], mask=written[:, None], other=0.0)
    x = bf16_to_fp32(x)
    scale = row_scale(x, 1)
    codes = fp32_to_e4m3(x, scale[:, None], INTERPRETED)
    to_row = codes_ptr + slot * codes_slot_stride + head * DIM
    tl.store(to_row[:, None] + d[None, :], codes, mask=written[:, None])
    tl.store(scale_ptr + slot * scale_slot_stride + head, scale, mask=written)
