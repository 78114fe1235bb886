"""The quantising writes in PyTorch."""

from __future__ import annotations

import torch

from sglang_qsa_kernels.codec.reference import quantise_e4m3, quantise_mxfp4


def write_e4m3_reference(
    rows: torch.Tensor, slots: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor
) -> None:
    """Rows [n, ..., dim] to `codes` [slots, ..., dim] and `scale` [slots, ...]."""
    wanted = slots > 0
    new_codes, new_scale = quantise_e4m3(rows[wanted])
    codes.view(torch.uint8)[slots[wanted].long()] = new_codes.view(torch.uint8)
    scale[slots[wanted].long()] = new_scale


def write_mxfp4_reference(
    rows: torch.Tensor,
    slots: torch.Tensor,
    packed: torch.Tensor,
    exponent: torch.Tensor,
) -> None:
    """Rows [n, dim] to `packed` [slots, dim / 2] and `exponent` [slots, dim / 32]."""
    wanted = slots > 0
    packed[slots[wanted].long()], exponent[slots[wanted].long()] = quantise_mxfp4(
        rows[wanted]
    )
