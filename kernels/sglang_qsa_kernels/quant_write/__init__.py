"""Quantise on write: K and V, and compressed index keys, into their pools.

The number formats and the one rounding rule are those of `codec`. Slot 0 is SGLang's
padding slot and negative slots are no slots: such rows are not written. Two rows of
one call must not name the same slot.
"""

from __future__ import annotations

import torch
import triton

from sglang_qsa_kernels.checks import refuse, require
from sglang_qsa_kernels.codec import MXFP4_GROUP
from sglang_qsa_kernels.interpreter import INTERPRETED
from sglang_qsa_kernels.quant_write.kernel import e4m3_rows_kernel
from sglang_qsa_kernels.quant_write.mxfp4.kernel import mxfp4_rows_kernel
from sglang_qsa_kernels.quant_write.tiles import tile_for

_SLOTS = (torch.int32, torch.int64)


def write_kv_e4m3(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    k_codes: torch.Tensor,
    v_codes: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Store K and V as e4m3 with one scale per token and KV head, in one launch.

    Args:
        k, v: [tokens, heads, head_dim] bf16; a token is contiguous. head_dim is a power
            of two.
        slots: [tokens] int32 or int64, the row of the pools that a token goes to.
        k_codes, v_codes: [slots, heads, head_dim] e4m3 pools of the same strides.
        k_scale, v_scale: [slots, heads] fp32 pools of the same strides.
    Raises:
        ValueError: an argument is not as described.
    """
    origin = "write_kv_e4m3"
    for name, x, codes, scale in (
        ("k", k, k_codes, k_scale),
        ("v", v, v_codes, v_scale),
    ):
        _check_e4m3(origin, name, x, slots, codes, scale)
    if (
        k.shape != v.shape
        or k_codes.stride() != v_codes.stride()
        or k_scale.stride() != v_scale.stride()
    ):
        raise refuse(
            origin=f"{origin}: k and v",
            found=f"shapes {list(k.shape)} and {list(v.shape)}, pool strides "
            f"{k_codes.stride()} and {v_codes.stride()}",
            wanted="K and V of one shape in pools of one layout",
            way_out="write them with two calls of write_keys_e4m3",
        )
    _launch_e4m3(k, v, slots, k_codes, v_codes, k_scale, v_scale)


def write_keys_e4m3(
    keys: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor
) -> None:
    """Store compressed index keys as e4m3 with one scale each.

    Args:
        keys: [keys, dim] bf16, a key is contiguous. dim is a power of two.
        slots: [keys] int32 or int64, the row of the pools that a key goes to.
        codes: [slots, dim] e4m3 pool.
        scale: [slots] fp32 pool.
    Raises:
        ValueError: an argument is not as described.
    """
    heads = [tensor.unsqueeze(1) for tensor in (keys, codes, scale)]
    _check_e4m3("write_keys_e4m3", "keys", heads[0], slots, heads[1], heads[2])
    keys, codes, scale = heads
    _launch_e4m3(keys, None, slots, codes, None, scale, None)


def write_keys_mxfp4(
    keys: torch.Tensor,
    slots: torch.Tensor,
    packed: torch.Tensor,
    exponent: torch.Tensor,
) -> None:
    """Store compressed index keys as MXFP4.

    Args:
        keys: [keys, dim] bf16, a key is contiguous. dim / 32 is a power of two.
        slots: [keys] int32 or int64, the row of the pools that a key goes to.
        packed: [slots, dim / 2] uint8 pool.
        exponent: [slots, dim / 32] uint8 pool of E8M0.
    Raises:
        ValueError: an argument is not as described.
    """
    origin = "write_keys_mxfp4"
    require(keys, f"{origin}: keys", (None, None), (torch.bfloat16,), keys.device)
    count, dim = keys.shape
    groups, odd = divmod(dim, MXFP4_GROUP)
    uint8 = (torch.uint8,)
    require(slots, f"{origin}: slots", (count,), _SLOTS, keys.device)
    require(packed, f"{origin}: packed", (None, dim // 2), uint8, keys.device)
    require(
        exponent, f"{origin}: exponent", (packed.shape[0], groups), uint8, keys.device
    )
    _check_rows(origin, 0 if odd else groups, [keys, packed, exponent, slots])
    if not count:
        return
    tile = tile_for(keys.device)
    mxfp4_rows_kernel[(triton.cdiv(count, tile.rows),)](
        keys,
        slots,
        packed,
        exponent,
        count,
        keys.stride(0),
        packed.stride(0),
        exponent.stride(0),
        DIM=dim,
        BLOCK=tile.rows,
        num_warps=tile.warps,
    )


def _launch_e4m3(
    a: torch.Tensor,
    b: torch.Tensor | None,
    slots: torch.Tensor,
    a_codes: torch.Tensor,
    b_codes: torch.Tensor | None,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor | None,
) -> None:
    tokens, heads, dim = a.shape
    if not tokens:
        return
    tile = tile_for(a.device)
    both = b is not None
    e4m3_rows_kernel[(triton.cdiv(tokens * heads, tile.rows), 1 + both)](
        a,
        a if b is None else b,
        slots,
        a_codes.view(torch.uint8),
        (a_codes if b_codes is None else b_codes).view(torch.uint8),
        a_scale,
        a_scale if b_scale is None else b_scale,
        tokens * heads,
        a.stride(0),
        (a if b is None else b).stride(0),
        a_codes.stride(0),
        a_scale.stride(0),
        HEADS=heads,
        DIM=dim,
        BLOCK=tile.rows,
        INTERPRETED=INTERPRETED,
        num_warps=tile.warps,
    )


def _check_e4m3(
    origin: str,
    name: str,
    x: torch.Tensor,
    slots: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    bf16, e4m3, fp32 = (torch.bfloat16,), (torch.float8_e4m3fn,), (torch.float32,)
    require(x, f"{origin}: {name}", (None, None, None), bf16, x.device)
    tokens, heads, dim = x.shape
    require(slots, f"{origin}: slots", (tokens,), _SLOTS, x.device)
    pool = (None, heads, dim)
    require(codes, f"{origin}: codes of {name}", pool, e4m3, x.device)
    scales = (codes.shape[0], heads)
    require(scale, f"{origin}: scale of {name}", scales, fp32, x.device)
    rows = [x, codes, scale[..., None], slots[:, None, None]]
    _check_rows(f"{origin}: {name}", dim, rows)


def _check_rows(origin: str, power: int, tensors: list[torch.Tensor]) -> None:
    """Refuse rows [n, heads, dim] that are not contiguous, or of an odd size."""
    dense = all(x.numel() == 0 or x[0].is_contiguous() for x in tensors)
    in_order = tensors[-1].is_contiguous()
    if dense and in_order and power > 0 and not power & (power - 1):
        return
    raise refuse(
        origin=origin,
        found="; ".join(f"{list(x.shape)} strides {list(x.stride())}" for x in tensors),
        wanted="contiguous rows of a power of two values, and contiguous slots",
        way_out="pass rows and pools as they were allocated",
    )
