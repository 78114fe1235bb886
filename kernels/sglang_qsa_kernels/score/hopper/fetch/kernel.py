"""Pages of the index keys into shared memory, by TMA.

The pool's map is [groups of 8 keys, halves, 8 keys, 64 values] and its box is a page.
Eight keys by 64 values is what wgmma reads with a swizzle of 128 bytes: one message
brings a page, and nothing is moved again.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

# Gluon is experimental: the names are those of Triton 3.9 and of 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _pick(b, values, at):
    return gl.sum(gl.where(b == at, values, 0), 0)


@gluon.jit
def share(lengths, ROWS: gl.constexpr, BATCH_PADDED: gl.constexpr, BLOCK: gl.constexpr):
    """Blocks, tiles and last tiles of all requests, and this program's tiles.

    As in `score_kernel`: an equal run of the tiles of all requests, laid end to end.
    """
    visible_ptr, batch, columns, min_visible = lengths
    # Every warp holds all requests: no sum over them leaves a warp.
    L: gl.constexpr = gl.BlockedLayout(
        [max(1, BATCH_PADDED // 32)], [32], [gl.num_warps()], [0]
    )
    b = gl.arange(0, BATCH_PADDED, layout=L)
    longest = gl.full([BATCH_PADDED], 0, gl.int32, layout=L)
    for w in gl.static_range(ROWS):
        visible = gl.load(visible_ptr + b * ROWS + w, mask=b < batch, other=0)
        longest = gl.maximum(longest, visible)
    longest = gl.minimum(longest, columns)
    tiles = gl.where(longest > min_visible, (longest + BLOCK - 1) // BLOCK, 0)
    ends = gl.associative_scan(tiles, 0, _add)
    total = gl.sum(tiles, 0)
    program = gl.program_id(0)
    each = total // gl.num_programs(0)
    extra = total % gl.num_programs(0)
    first = program * each + gl.minimum(program, extra)
    last = first + each + (program < extra).to(gl.int32)
    return (b, longest, tiles, ends), first, last


@gluon.jit
def request_of(requests, tile):
    """The request that a tile belongs to, its blocks, and its first and last tile."""
    b, longest, tiles, ends = requests
    request = gl.sum((ends <= tile).to(gl.int32), 0)
    end = _pick(b, ends, request)
    return request, _pick(b, longest, request), end - _pick(b, tiles, request), end


@gluon.jit
def allocate(BLOCK: gl.constexpr, STAGES: gl.constexpr, DIM: gl.constexpr):
    """A ring of tiles, and of each the barriers that say that it is full or empty."""
    K: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)
    B: gl.constexpr = mbarrier.MBarrierLayout()
    tiles = gl.allocate_shared_memory(
        gl.bfloat16, [STAGES, BLOCK // 8, 2, 8, DIM // 2], K
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], B)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], B)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    return tiles, full, empty


@gluon.jit
def _page_ids(table, request, p, length, wanted, PAGE: gl.constexpr):
    """Ids of a request's pages `p`; 0 past its last visible block, or if unwanted."""
    of_page = table[0] + request.to(gl.int64) * table[1] + p
    return gl.load(of_page, mask=(p * PAGE < length) & wanted, other=0)


@gluon.jit
def _prefetch(
    keys_ptr,
    table,
    request,
    first_page,
    pages,
    length,
    PAGE: gl.constexpr,
    DIM: gl.constexpr,
):
    """Ask for a program's first pages to be in L2, a thread each."""
    T: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    t = gl.arange(0, 32, layout=T)
    p = first_page + t
    wanted = (t < pages) & (p * PAGE < length)
    page = _page_ids(table, request, p, length, wanted, PAGE)
    of_page = keys_ptr + page.to(gl.int64) * (PAGE * DIM)
    gl.static_assert(PAGE * DIM * 2 == 4096)
    gl.inline_asm_elementwise(
        """
        {
        .reg .pred wanted;
        setp.ne.s32 wanted, $2, 0;
        @wanted cp.async.bulk.prefetch.L2.global [$1], 4096;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r",
        [of_page.to(gl.int64), wanted.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _ask(keys_desc, ids, p, tile, full, PAGE: gl.constexpr, DIM: gl.constexpr):
    """Ask for the pages of a tile; its barrier counts the bytes of all of them."""
    PAGES: gl.constexpr = p.shape[0]
    mbarrier.expect(full, PAGES * PAGE * DIM * 2)
    for i in gl.static_range(PAGES):
        group = _pick(p, ids, i) * (PAGE // 8)
        box = tile.slice(i * (PAGE // 8), PAGE // 8)
        _load_box(keys_desc, [group, 0, 0, 0], full, box)


@gluon.jit
def fetch(
    keys_desc,
    keys_ptr,
    table,
    lengths,
    ring,
    ROWS: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    BATCH_PADDED: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """What one warp does: ask for pages, and read their ids a tile ahead."""
    PAGES: gl.constexpr = BLOCK // PAGE
    # All ids of a tile in every thread.
    P: gl.constexpr = gl.BlockedLayout([PAGES], [32], [1], [0])
    p = gl.arange(0, PAGES, layout=P)
    tiles, full, empty = ring
    requests, first, last = share(lengths, ROWS, BATCH_PADDED, BLOCK)
    request, length, begin, end = request_of(requests, first)
    page = (first - begin) * PAGES
    ids = _page_ids(table, request, page + p, length, first < last, PAGE)
    # L2 is where the writes of the kernel before arrive too, so keys may be on their
    # way there before it is done.
    pages = gl.minimum(last - first, AHEAD) * PAGES
    _prefetch(keys_ptr, table, request, page, pages, length, PAGE, DIM)
    tl.extra.cuda.gdc_wait()
    slot = 0
    phase = 1
    for tile in range(first, last):
        mbarrier.wait(empty.index(slot), phase)
        _ask(keys_desc, ids, p, tiles.index(slot), full.index(slot), PAGE, DIM)
        if tile + 1 >= end:
            request, length, begin, end = request_of(requests, tile + 1)
        page = (tile + 1 - begin) * PAGES
        ids = _page_ids(table, request, page + p, length, tile + 1 < last, PAGE)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
