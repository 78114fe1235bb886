"""The `direct` copies between device and host pools, in PyTorch.

mha.py:63, mamba.py:33 and memory_pool_host.py:45 import them from the CUDA wheel on
CUDA only, so on a CPU the names do not exist. Supported: `--hicache-io-backend
direct` with the host layout `page_first_direct`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _pages(token_indices: torch.Tensor, page_size: int) -> torch.Tensor:
    return token_indices.reshape(-1, page_size)[:, 0] // page_size


def _rows_to_rows(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    for source, destination in zip(src_layers, dst_layers, strict=True):
        destination[dst_indices] = source[src_indices]


def _host_pages_to_layer(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Host [page, layer, row, ...] to one device layer [row, ...]."""
    pages = _pages(src_indices, page_size)
    for source, destination in zip(src_ptrs, dst_ptrs, strict=True):
        rows = source[pages, layer_id]
        destination[dst_indices] = rows.reshape(-1, *destination.shape[1:])


def _layers_to_host_pages(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """All device layers to host pages; sources are the layers of each destination."""
    pages = _pages(dst_indices, page_size)
    layers = len(src_ptrs) // len(dst_ptrs)
    for group, destination in enumerate(dst_ptrs):
        for layer in range(layers):
            rows = src_ptrs[group * layers + layer][src_indices]
            destination[pages, layer] = rows.reshape(len(pages), *destination.shape[2:])


def apply(module: ModuleType) -> None:
    module.transfer_kv_direct = _rows_to_rows  # type: ignore[attr-defined]
    module.transfer_kv_per_layer_direct_pf_lf = _host_pages_to_layer  # type: ignore[attr-defined]
    module.transfer_kv_all_layer_direct_lf_pf = _layers_to_host_pages  # type: ignore[attr-defined]
