"""The formats of `codec` in PyTorch, for tests, cases and machines without a GPU."""

from __future__ import annotations

import torch

from sglang_qsa_kernels.codec import (
    E4M3_MAX,
    E4M3_NAN,
    E8M0_BIAS,
    E8M0_MAX,
    E8M0_MIN,
    E8M0_NAN,
    MIN_SCALE,
    MXFP4_GROUP,
)

_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoint below each code but the first. A tie goes to the even one."""


def quantise_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to e4m3 with one scale each.

    Args:
        x: [..., D], any floating dtype.
    Returns:
        e4m3 [..., D] and fp32 [...]: x is about codes * scale.
    """
    x = x.float()
    amax = _finite_amax(x)
    # A tensor on both sides: PyTorch's CUDA kernel multiplies by the inverse of a
    # scalar, which rounds twice.
    scale = (amax / torch.full_like(amax, E4M3_MAX)).clamp_min(MIN_SCALE)
    scale = torch.where(amax.isinf(), torch.nan, scale)
    codes = (x / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    bits = codes.view(torch.uint8)
    bits = torch.where(scale[..., None].isnan(), E4M3_NAN, bits)
    return bits.to(torch.uint8).view(torch.float8_e4m3fn), scale


def dequantise_e4m3(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Inverse of `quantise_e4m3`; exact in fp64."""
    return codes.to(dtype) * scale[..., None].to(dtype)


def quantise_mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to MXFP4.

    Args:
        x: [..., D], any floating dtype, D a multiple of 32.
    Returns:
        uint8 [..., D / 2], two codes a byte, and E8M0 uint8 [..., D / 32].
    """
    groups = x.float().unflatten(-1, (-1, MXFP4_GROUP))
    amax = _finite_amax(groups)
    bits = amax.view(torch.int32)
    exponent = (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000).int()
    exponent = exponent.clamp(E8M0_MIN, E8M0_MAX)
    codes = _e2m1(torch.ldexp(groups, (E8M0_BIAS - exponent)[..., None]))
    codes = torch.where(amax.isinf()[..., None], 0, codes).flatten(-2)
    exponent = torch.where(amax.isinf(), E8M0_NAN, exponent)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed.to(torch.uint8), exponent.to(torch.uint8)


def dequantise_mxfp4(
    packed: torch.Tensor, exponent: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Inverse of `quantise_mxfp4`; exact in fp64."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    known = torch.tensor(_E2M1_VALUES, dtype=dtype, device=packed.device)
    values: torch.Tensor = known[codes & 7]
    values = torch.where(codes >= 8, -values, values)
    scale = torch.exp2(exponent.to(torch.float64) - E8M0_BIAS).to(dtype)
    scale = torch.where(exponent == E8M0_NAN, torch.nan, scale)
    values = values.unflatten(-1, (-1, MXFP4_GROUP)) * scale[..., None]
    return values.flatten(-2)


def _finite_amax(x: torch.Tensor) -> torch.Tensor:
    """Largest size in the last dimension; infinite if a value is not finite."""
    return torch.where(x.isfinite(), x.abs(), torch.inf).amax(-1)


def _e2m1(y: torch.Tensor) -> torch.Tensor:
    size = y.abs()
    codes = torch.signbit(y).int() << 3
    for code, bound in enumerate(_E2M1_BOUNDS):
        codes += (size >= bound if code % 2 else size > bound).int()
    return codes
