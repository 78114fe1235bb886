"""Attention of decode and verify rows over their selected tokens, read in place."""

from __future__ import annotations

import torch
import triton

from sglang_qsa_kernels.interpreter import INTERPRETED
from sglang_qsa_kernels.sparse_decode.checks import check
from sglang_qsa_kernels.sparse_decode.combine.kernel import combine_kernel
from sglang_qsa_kernels.sparse_decode.kernel import sparse_decode_kernel
from sglang_qsa_kernels.sparse_decode.tiles import Tiles, splits_for, tiles_for

_MMA_ROWS = 16
_COMBINE_WARPS = 4


def sparse_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    tokens: torch.Tensor,
    token_slots: torch.Tensor,
    row_requests: torch.Tensor,
    lengths: torch.Tensor,
    *,
    softmax_scale: float,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Softmax attention of each row over `tokens[row]`, without a copy of K or V.

    All inputs are read on the device and every sum has a fixed order: the call can be
    captured in a CUDA graph and gives the same bits each time. Only selected slots
    are read. The tail of the open group is part of `tokens`, as in SGLang's
    expansion of selected blocks.

    Args:
        q: [rows, heads, dim] bf16, dim contiguous; rows of a verify follow each other.
        k_cache: [slots, kv heads, dim] bf16 or e4m3, heads and dim contiguous.
        v_cache: as `k_cache`.
        tokens: [rows, width] int32 positions in the request; below zero, or not below
            the row's length, means none.
        token_slots: [requests, context] int32 slot of each token of each request.
        row_requests: [rows] int32 or int64, row of `token_slots`.
        lengths: [rows] int32 or int64, tokens of the request that exist for the row.
        softmax_scale: factor on q · k.
        k_scales: [slots, kv heads] fp32 factor of each e4m3 row; 1 if absent.
        v_scales: as `k_scales`; both or none.
        tiles: launch shape, to measure others than the one of this GPU.
    Returns:
        [rows, heads, dim] bf16; zero for a row without a token.
    Raises:
        ValueError: an argument is not as described.
    Source: replaces `_forward_paged_attention` of sglang/srt/layers/attention/
        qwen_sparse_attn_backend.py@0.5.23 after the expansion.
    """
    check(
        q, k_cache, v_cache, tokens, token_slots, row_requests, lengths, k_scales,
        v_scales,
    )  # fmt: skip
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not len(q):
        return out
    programs = len(q) * k_cache.shape[1]
    if tiles is None:
        fp8 = k_cache.dtype == torch.float8_e4m3fn
        tiles = tiles_for(q.device, fp8=fp8, programs=programs)
    width = tokens.shape[1]
    splits = splits_for(q.device, tiles, programs=programs, width=width)
    tiles_per_split = max(1, triton.cdiv(triton.cdiv(width, tiles.block), splits))
    splits = max(1, triton.cdiv(width, tiles_per_split * tiles.block))
    sums, peaks, totals = out, None, None
    if splits > 1:
        rows, heads, dim = q.shape
        sums = torch.empty((rows, heads, splits, dim), device=q.device)
        peaks = torch.empty((rows, heads, splits), device=q.device)
        totals = torch.empty((rows, heads, splits), device=q.device)
    sparse_decode_kernel[(programs, splits)](
        q,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        tokens,
        token_slots,
        row_requests,
        lengths,
        sums,
        peaks,
        totals,
        width,
        softmax_scale,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        v_cache.stride(0),
        0 if k_scales is None else k_scales.stride(0),
        tokens.stride(0),
        token_slots.stride(0),
        sums.stride(0),
        tiles_per_split,
        SPLIT=splits > 1,
        **_constants(q, k_cache, k_scales, tiles),
    )
    if peaks is not None:
        _combine(sums, peaks, totals, out)
    return out


def _constants(
    q: torch.Tensor, k_cache: torch.Tensor, k_scales: torch.Tensor | None, tiles: Tiles
) -> dict[str, int | bool]:
    """What the kernel is compiled for."""
    group = q.shape[1] // k_cache.shape[1]
    return {
        "KV_HEADS": k_cache.shape[1],
        "GROUP": group,
        "GROUP_PADDED": max(_MMA_ROWS, triton.next_power_of_2(group)),
        "DIM": q.shape[2],
        "BLOCK": tiles.block,
        "STAGES": tiles.stages,
        "FP8": k_cache.dtype == torch.float8_e4m3fn,
        "HAS_SCALES": k_scales is not None,
        "INTERPRETED": INTERPRETED,
        "num_warps": tiles.warps,
    }


def _combine(
    sums: torch.Tensor,
    peaks: torch.Tensor,
    totals: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    rows, heads, splits = peaks.shape
    combine_kernel[(rows * heads,)](
        sums,
        peaks,
        totals,
        out,
        splits,
        DIM=out.shape[2],
        SPLITS_PADDED=triton.next_power_of_2(splits),
        num_warps=_COMBINE_WARPS,
    )
