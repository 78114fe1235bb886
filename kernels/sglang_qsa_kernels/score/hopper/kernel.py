"""The bf16 scorer whose pages come by TMA, in Gluon. Contract: `score.score`.

One warp asks for pages, four multiply and store; a ring of tiles in shared memory lies
between them. Products and sums are those of `score.kernel`, bit for bit.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sglang_qsa_kernels.score.hopper.fetch.kernel import (
    allocate,
    barrier,
    fetch,
    request_of,
    share,
)

_ALL = gl.constexpr(tl.PropagateNan.ALL)
_ROWS = gl.constexpr(4)
"""Rows with their padding: with four heads the 16 columns of a product."""


@gluon.jit
def _load_queries(
    of_request, strides, queries, ROWS: gl.constexpr, HEADS: gl.constexpr
):
    """Rows x heads of a request to shared memory, once no warp reads the last."""
    DIM: gl.constexpr = queries.shape[1]
    Q: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // DIM, DIM // 8], [gl.num_warps(), 1], [1, 0]
    )
    m = gl.arange(0, _ROWS * HEADS, layout=gl.SliceLayout(1, Q))
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, Q))
    of_row = of_request + (m // HEADS) * strides[1] + (m % HEADS) * strides[2]
    in_use = m // HEADS < ROWS
    q = gl.load(of_row[:, None] + d[None, :], mask=in_use[:, None], other=0.0)
    barrier()
    queries.store(q)
    fence_async_shared()
    barrier()


@gluon.jit
def _products(tile, queries, D: gl.constexpr, BLOCK: gl.constexpr):
    """Keys of one tile x rows and heads."""
    COLUMNS: gl.constexpr = queries.shape[0]
    DIM: gl.constexpr = queries.shape[1]
    s = gl.zeros([BLOCK, COLUMNS], gl.float32, layout=D)
    keys = tile.permute((0, 2, 1, 3)).reshape((BLOCK, DIM))
    s = warpgroup_mma(keys, queries.permute((1, 0)), s, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=(s, keys))[0]


@gluon.jit
def _head_sums(s, scale, HEADS: gl.constexpr):
    """ReLU of one tile's products, scaled and summed over heads: [keys, rows]."""
    BLOCK: gl.constexpr = s.shape[0]
    s = gl.maximum(s, 0.0, propagate_nan=_ALL) * scale
    return gl.sum(gl.reshape(s, (BLOCK, _ROWS, HEADS)), 2)


@gluon.jit
def _group_maxima(sums, GROUP: gl.constexpr):
    GROUPS: gl.constexpr = sums.shape[0] // GROUP
    return gl.max(gl.reshape(sums, (GROUPS, GROUP, _ROWS)), 1)


@gluon.jit
def _places(like, output, visible_ptr, request, length, ROWS: gl.constexpr):
    """Where a request's first tile goes in an output, and where its rows end."""
    L: gl.constexpr = like.type.layout
    COUNT: gl.constexpr = like.shape[0]
    n = gl.arange(0, COUNT, layout=gl.SliceLayout(1, L))
    w = gl.arange(0, _ROWS, layout=gl.SliceLayout(0, L))
    row_end = gl.load(visible_ptr + request * ROWS + w, mask=w < ROWS, other=0)
    of_row = output[0] + request.to(gl.int64) * output[1] + w.to(gl.int64) * output[2]
    return n, of_row[None, :] + n[:, None], gl.minimum(row_end, length)


@gluon.jit
def _multiply(
    q_ptr,
    q_strides,
    lengths,
    scale,
    out,
    maxima,
    ring,
    queries,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    BATCH_PADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    MAXIMA: gl.constexpr,
    GROUP: gl.constexpr,
):
    """What four warps do: multiply and store."""
    D: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _ROWS * HEADS, 16])
    # For their layouts alone: no instruction comes of them.
    like = gl.zeros([BLOCK, _ROWS * HEADS], gl.float32, layout=D)
    like = _head_sums(like, scale, HEADS)
    like_maxima = _group_maxima(like, GROUP)
    tiles, full, empty = ring
    requests, first, last = share(lengths, ROWS, BATCH_PADDED, BLOCK)
    tl.extra.cuda.gdc_wait()
    slot = 0
    phase = 0
    done = first
    while done < last:
        request, length, begin, end = request_of(requests, done)
        end = gl.minimum(end, last)
        n, of_score, row_end = _places(like, out, lengths[0], request, length, ROWS)
        if MAXIMA:
            g, of_maximum, group_row_end = _places(
                like_maxima, maxima, lengths[0], request, length, ROWS
            )
        of_request = q_ptr + request.to(gl.int64) * q_strides[0]
        _load_queries(of_request, q_strides, queries, ROWS, HEADS)
        for tile in range(done, end):
            mbarrier.wait(full.index(slot), phase)
            s = _products(tiles.index(slot), queries, D, BLOCK)
            # All warps have read the slot.
            barrier()
            mbarrier.arrive(empty.index(slot), count=1)
            sums = _head_sums(s, scale, HEADS)
            at = (tile - begin) * BLOCK
            seen = (n + at)[:, None] < row_end[None, :]
            gl.store(of_score + at, sums, mask=seen)
            if MAXIMA:
                best = _group_maxima(gl.where(seen, sums, 0.0), GROUP)
                some = (g * GROUP + at)[:, None] < group_row_end[None, :]
                gl.store(of_maximum + at // GROUP, best, mask=some)
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        done = end


@gluon.jit(do_not_specialize=["batch", "columns", "min_visible"])
def hopper_kernel(
    q_ptr,
    keys_desc,
    keys_ptr,
    page_table_ptr,
    visible_ptr,
    out_ptr,
    maxima_ptr,
    batch,
    columns,
    min_visible,
    scale,
    q_request_stride,
    q_row_stride,
    q_head_stride,
    table_stride,
    out_request_stride,
    out_row_stride,
    maxima_request_stride,
    maxima_row_stride,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    BATCH_PADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    SETTLED: gl.constexpr,
    MAXIMA: gl.constexpr,
    GROUP: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
):
    """Every warp but the idle ones waits for the kernel before: of what is settled,
    lengths and the first page ids are read ahead of that, as in `score_kernel`."""
    tl.extra.cuda.gdc_launch_dependents()
    if not SETTLED:
        tl.extra.cuda.gdc_wait()
    ring = allocate(BLOCK, STAGES, DIM)
    Q: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    queries = gl.allocate_shared_memory(gl.bfloat16, [_ROWS * HEADS, DIM], Q)
    q_strides = (q_request_stride, q_row_stride, q_head_stride)
    lengths = (visible_ptr, batch, columns, min_visible)
    out = (out_ptr, out_request_stride, out_row_stride)
    maxima = (maxima_ptr, maxima_request_stride, maxima_row_stride)
    table = (page_table_ptr, table_stride)
    # In one expression: a name would make tensors of the constants in a tuple.
    gl.warp_specialize(
        [
            (_multiply, (
                q_ptr, q_strides, lengths, scale, out, maxima, ring, queries, ROWS,
                HEADS, BATCH_PADDED, BLOCK, STAGES, MAXIMA, GROUP,
            )),
            (fetch, (
                keys_desc, keys_ptr, table, lengths, ring, ROWS, DIM, PAGE,
                BATCH_PADDED, BLOCK, STAGES, AHEAD,
            )),
        ],
        [1],
        [FETCH_REGISTERS],
    )  # fmt: skip
