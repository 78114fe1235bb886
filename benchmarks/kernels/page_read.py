"""Reading the pages that the scorer reads, and nothing else: its ceiling.

The Hopper scorer without products and stores: the same programs ask for the same pages,
and give each tile back once it has come.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from sglang_qsa_kernels.score import hopper
from sglang_qsa_kernels.score.cases import Inputs
from sglang_qsa_kernels.score.hopper.fetch.kernel import allocate, barrier, fetch, share
from sglang_qsa_kernels.score.tiles import HopperTile, padded_batch, programs


@gluon.jit
def _give_back(
    lengths,
    ring,
    ROWS: gl.constexpr,
    BATCH_PADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):
    _, full, empty = ring
    _, first, last = share(lengths, ROWS, BATCH_PADDED, BLOCK)
    tl.extra.cuda.gdc_wait()
    slot = 0
    phase = 0
    for _ in range(first, last):
        mbarrier.wait(full.index(slot), phase)
        barrier()
        mbarrier.arrive(empty.index(slot), count=1)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1


@gluon.jit(do_not_specialize=["batch", "columns"])
def read_kernel(
    keys_desc,
    keys_ptr,
    page_table_ptr,
    table_stride,
    visible_ptr,
    batch,
    columns,
    ROWS: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    BATCH_PADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    ring = allocate(BLOCK, STAGES, DIM)
    lengths = (visible_ptr, batch, columns, 0)
    table = (page_table_ptr, table_stride)
    gl.warp_specialize(
        [
            (_give_back, (lengths, ring, ROWS, BATCH_PADDED, BLOCK, STAGES)),
            (fetch, (
                keys_desc, keys_ptr, table, lengths, ring, ROWS, DIM, PAGE,
                BATCH_PADDED, BLOCK, STAGES, AHEAD,
            )),
        ],
        [1],
        [FETCH_REGISTERS],
    )  # fmt: skip


def read_pages(given: Inputs, tile: HopperTile) -> None:
    """Bring every page that `score` would, to shared memory."""
    table, visible = given.page_table, given.visible
    requests, rows = visible.shape
    columns = table.shape[1] * hopper.PAGE_SIZE
    read_kernel[(programs(tile, requests, columns, table.device),)](
        hopper.map_of(given.keys.data_ptr(), len(given.keys)),
        given.keys,
        table,
        table.stride(0),
        visible,
        requests,
        columns,
        ROWS=rows,
        DIM=given.keys.shape[2],
        PAGE=hopper.PAGE_SIZE,
        BATCH_PADDED=padded_batch(requests),
        BLOCK=tile.block_keys,
        STAGES=tile.stages,
        AHEAD=tile.ahead,
        FETCH_REGISTERS=hopper.FETCH_REGISTERS,
        num_warps=hopper.WARPS,
        maxnreg=hopper.REGISTERS,
        launch_pdl=True,
    )
