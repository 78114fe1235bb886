"""The bf16 scorer on Hopper: pages come by TMA, and no thread waits to copy them.

`score.kernel` serves what it does not take.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton

from sglang_qsa_kernels.score.tiles import HopperTile, padded_batch, programs

PAGE_SIZE: Final = 16
MOST_REQUESTS: Final = 128
"""Every warp holds the lengths of all requests; those of more would be spilled."""
TRITON_VERSIONS: Final = ("3.6",)
"""Gluon is experimental: versions that the kernel has run with. It compiles with 3.7 to
3.9 too."""
WARPS: Final = 4
"""That multiply: one group. Triton adds the one that fetches, and three that idle."""
REGISTERS: Final = 64
"""Of each thread, so that four programs have all of a multiprocessor."""
FETCH_REGISTERS: Final = 40
"""What the warp that fetches keeps of them; those that multiply get the rest."""

_DIM = 128
_MOST_POOLS = 512
"""One of each layer, of two models, and some to spare."""


def takes(
    keys: torch.Tensor, requests: int, *, triton_version: str = triton.__version__
) -> bool:
    """Whether the kernel can score these keys, as `score` has checked them.

    Args:
        keys: bf16 [pages, 16, 128], contiguous, on an address that TMA can read.
        requests: 1 to 128.
    """
    return (
        ".".join(triton_version.split(".")[:2]) in TRITON_VERSIONS
        and keys.dtype == torch.bfloat16
        and keys.shape[1:] == (PAGE_SIZE, _DIM)
        and keys.is_contiguous()
        and keys.data_ptr() % 16 == 0
        and requests <= MOST_REQUESTS
    )


def launch(
    q: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    maxima: torch.Tensor | None,
    min_visible: int,
    columns: int,
    settled: bool,
    group: int,
    tile: HopperTile,
) -> None:
    """`score` of what the kernel takes, unchecked."""
    # Gluon cannot be imported with every Triton that the package can be.
    from sglang_qsa_kernels.score.hopper.kernel import hopper_kernel

    requests, rows, heads, dim = q.shape
    hopper_kernel[(programs(tile, requests, columns, q.device),)](
        q,
        map_of(keys.data_ptr(), keys.shape[0]),
        keys,
        page_table,
        visible,
        out,
        out if maxima is None else maxima,
        requests,
        columns,
        min_visible,
        scale,
        *q.stride()[:3],
        page_table.stride(0),
        *out.stride()[:2],
        *(out if maxima is None else maxima).stride()[:2],
        ROWS=rows,
        HEADS=heads,
        DIM=dim,
        PAGE=PAGE_SIZE,
        BATCH_PADDED=padded_batch(requests),
        BLOCK=tile.block_keys,
        STAGES=tile.stages,
        AHEAD=tile.ahead,
        SETTLED=settled,
        MAXIMA=maxima is not None,
        GROUP=group,
        FETCH_REGISTERS=FETCH_REGISTERS,
        num_warps=WARPS,
        maxnreg=REGISTERS,
        launch_pdl=True,
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """What a descriptor asks of a tensor, without holding its memory."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


@functools.lru_cache(maxsize=_MOST_POOLS)
def map_of(address: int, pages: int) -> Any:
    """Descriptor of a pool. It is nothing but these numbers, so that of a pool that is
    gone does no harm; Triton encodes it anew in every launch."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    half = _DIM // 2
    return TensorDescriptor(
        _Pool(address, torch.bfloat16),
        [pages * PAGE_SIZE // 8, 2, 8, half],
        [8 * _DIM, half, _DIM, 1],
        [PAGE_SIZE // 8, 2, 8, half],
        gl.NVMMASharedLayout(128, 16, 4),
    )
