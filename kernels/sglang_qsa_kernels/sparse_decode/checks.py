"""What `sparse_decode` refuses."""

from __future__ import annotations

import torch

from sglang_qsa_kernels.checks import refuse, require

_INTEGERS = (torch.int32, torch.int64)
_FORMATS = (torch.bfloat16, torch.float8_e4m3fn)


def check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    tokens: torch.Tensor,
    token_slots: torch.Tensor,
    row_requests: torch.Tensor,
    lengths: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> None:
    """Raise `ValueError` where an argument is not what the kernel reads."""
    device = q.device
    _require("q", q, (None, None, None), (torch.bfloat16,), device)
    rows, heads, dim = q.shape
    if dim < 16 or dim & (dim - 1):
        _refuse("q", f"heads of {dim}", "16, 32, 64, … dims")
    _require("k_cache", k_cache, (None, None, dim), _FORMATS, device)
    _require("v_cache", v_cache, k_cache.shape, (k_cache.dtype,), device)
    if heads % k_cache.shape[1]:
        _refuse("q", f"{heads} heads", f"a multiple of {k_cache.shape[1]} KV heads")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.stride(1) != dim:
            _refuse(name, f"strides {cache.stride()}", "a slot without gaps")
    _check_scales(k_cache, k_scales, v_scales)
    _require("tokens", tokens, (rows, None), (torch.int32,), device)
    _require("token_slots", token_slots, (None, None), (torch.int32,), device)
    _require("row_requests", row_requests, (rows,), _INTEGERS, device)
    _require("lengths", lengths, (rows,), _INTEGERS, device)


def _check_scales(
    k_cache: torch.Tensor, k_scales: torch.Tensor | None, v_scales: torch.Tensor | None
) -> None:
    if k_scales is None and v_scales is None:
        return
    if k_scales is None or v_scales is None:
        _refuse("k_scales, v_scales", "one of them", "both or none")
    elif k_cache.dtype != torch.float8_e4m3fn:
        _refuse("k_scales", f"scales of {k_cache.dtype}", "scales of float8_e4m3fn")
    else:
        for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
            shape = tuple(k_cache.shape[:2])
            _require(name, scales, shape, (torch.float32,), k_cache.device)
            if scales.stride(0) != k_scales.stride(0):
                _refuse(name, f"strides {scales.stride()}", "those of k_scales")


def _require(
    name: str,
    values: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    require(values, f"sparse_decode: {name}", shape, dtypes, device)
    if values.shape[-1] > 1 and values.stride(-1) != 1:
        wanted = "unit stride in the last dimension"
        _refuse(name, f"strides {values.stride()}", wanted)


def _refuse(name: str, found: str, wanted: str) -> None:
    raise refuse(
        origin=f"sparse_decode: {name}",
        found=found,
        wanted=wanted,
        way_out="pass it as the op's docstring describes it",
    )
