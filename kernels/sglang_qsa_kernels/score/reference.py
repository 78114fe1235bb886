"""The scorer in PyTorch."""

from __future__ import annotations

import torch

from sglang_qsa_kernels.codec.reference import dequantise_e4m3, dequantise_mxfp4
from sglang_qsa_kernels.score import MAXIMA_GROUP


def score_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    key_scale: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """`score`, computed in `dtype`.

    Args:
        q, keys, page_table, visible, scale, key_scale: as for `score`.
    Returns:
        [requests, rows, pages_per_request * page_size], NaN where a row sees nothing.
    """
    requests, rows = visible.shape
    page_size = keys.shape[1]
    columns = page_table.shape[1] * page_size
    out = torch.full((requests, rows, columns), torch.nan, dtype=dtype, device=q.device)
    for request in range(requests):
        longest = int(visible[request].max())
        pages = page_table[request, : -(-longest // page_size)].long()
        some = _values(keys[pages], key_scale, pages, dtype).flatten(0, 1)[:longest]
        products = torch.einsum("whd,nd->whn", q[request].to(dtype), some)
        sums = products.clamp_min(0).sum(1) * scale
        columns_seen = torch.arange(longest, device=q.device)
        hidden = columns_seen >= visible[request, :, None]
        out[request, :, :longest] = sums.masked_fill(hidden, torch.nan)
    return out


def maxima_reference(scores: torch.Tensor) -> torch.Tensor:
    """Largest visible score of each 16; -inf where a row sees none of them."""
    missing = -scores.shape[-1] % MAXIMA_GROUP
    padded = torch.nn.functional.pad(scores, (0, missing), value=torch.nan)
    groups: torch.Tensor = padded.nan_to_num(-torch.inf).unflatten(
        -1, (-1, MAXIMA_GROUP)
    )
    return groups.amax(-1)


def _values(
    stored: torch.Tensor,
    key_scale: torch.Tensor | None,
    pages: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Keys of some pages, decoded."""
    if key_scale is None:
        return stored.to(dtype)
    if stored.dtype == torch.uint8:
        return dequantise_mxfp4(stored, key_scale[pages], dtype)
    return dequantise_e4m3(stored, key_scale[pages], dtype)
