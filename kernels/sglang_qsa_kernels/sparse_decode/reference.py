"""What `sparse_decode` computes, in plain torch."""

from __future__ import annotations

import torch


def sparse_decode_reference(
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
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """[rows, heads, dim] in `dtype`, which is also that of the computation.

    Shapes are those of `sparse_decode`.
    """
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    for row in range(q.shape[0]):
        chosen = tokens[row]
        chosen = chosen[(chosen >= 0) & (chosen < lengths[row])].long()
        if not len(chosen):
            continue
        slots = token_slots[row_requests[row], chosen].long()
        keys = _rows(k_cache, k_scales, slots, dtype)
        values = _rows(v_cache, v_scales, slots, dtype)
        grouped = q[row].to(dtype).unflatten(0, (keys.shape[0], -1))
        scores = grouped @ keys.mT * softmax_scale
        out[row] = (scores.softmax(-1) @ values).flatten(0, 1)
    return out


def _rows(
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    slots: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[kv heads, tokens, dim] of the selected slots."""
    rows = cache[slots].to(dtype)
    if scales is not None:
        rows = rows * scales[slots].to(dtype)[..., None]
    return rows.transpose(0, 1)
