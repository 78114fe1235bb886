"""The stacked scorer. Contract and layouts: `score.score`."""

import triton
import triton.language as tl

from sglang_qsa_kernels.codec.kernel import (
    bf16_to_fp32,
    e2m1_words_to_bf16,
    e4m3_words_to_fp16,
    e8m0_to_bf16,
)


@triton.jit
def _prefetch(pointers, wanted):
    """Ask for the 128 bytes at each pointer to be in L2, if wanted."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred wanted;
        setp.ne.s32 wanted, $2, 0;
        @wanted prefetch.global.L2 [$1];
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r",
        [pointers.to(tl.int64), wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _head_sums(
    s,
    unit,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS_ARE_M: tl.constexpr,
):
    """ReLU of one tile's products in their units, summed over heads: [ROWS, BLOCK]."""
    s = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    s *= unit[None, :] if KEYS_ARE_M else unit[:, None]
    if KEYS_ARE_M:
        return tl.trans(tl.sum(tl.reshape(s, (BLOCK, ROWS, HEADS)), 2))
    return tl.sum(tl.reshape(s, (ROWS, HEADS, BLOCK)), 1)


@triton.jit
def _products(
    queries,
    read,
    key_scale,
    DIM: tl.constexpr,
    FORMAT: tl.constexpr,
    PARTS: tl.constexpr,
    KEYS_ARE_M: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Decode one tile of keys and multiply it with the stacked queries."""
    if FORMAT == 3:
        d = tl.arange(0, DIM // PARTS)
        exponent = (key_scale[:, None] >> (d // (32 // PARTS) * 8)[None, :]) & 255
        parts = e2m1_words_to_bf16(read, e8m0_to_bf16(exponent), INTERPRETED)
    elif FORMAT == 2:
        parts = e4m3_words_to_fp16(read, INTERPRETED)
    else:
        parts = (read,)
    ROWS: tl.constexpr = queries[0].shape[1 if KEYS_ARE_M else 0]
    BLOCK: tl.constexpr = read.shape[0]
    if KEYS_ARE_M:
        s = tl.zeros((BLOCK, ROWS), tl.float32)
    else:
        s = tl.zeros((ROWS, BLOCK), tl.float32)
    for part in tl.static_range(PARTS):
        k = parts[part]
        if INTERPRETED:
            k = k.to(tl.float32)
        if KEYS_ARE_M:
            s = tl.dot(k, queries[part], s)
        else:
            s = tl.dot(queries[part], tl.trans(k), s)
    return s


@triton.jit
def _units(q, FORMAT: tl.constexpr):
    """Unit of each stacked row of queries, and its inverse.

    bf16 queries become fp16 next to e4m3 keys. Divided by the power of two of the
    row's largest value they lose nothing above 2^-17 of it, and 2^-25 of it below.
    """
    unit = tl.full((q.shape[0],), 1.0, tl.float32)
    inverse = unit
    if FORMAT == 2:
        bits = tl.max(tl.abs(bf16_to_fp32(q)), 1).to(tl.int32, bitcast=True)
        exponent = tl.minimum(tl.maximum(bits >> 23, 1), 253)
        unit = (exponent << 23).to(tl.float32, bitcast=True)
        inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return unit, inverse


@triton.jit
def _halves(x):
    """Even and odd columns."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def _interleaved(x, PARTS: tl.constexpr):
    """Columns `part`, `part + PARTS`, ... for each part."""
    if PARTS == 1:
        parts = (x,)
    elif PARTS == 4:
        even, odd = _halves(x)
        first, third = _halves(even)
        second, fourth = _halves(odd)
        parts = (first, second, third, fourth)  # type: ignore[assignment]
    else:
        tl.static_assert(PARTS == 8)
        even, odd = _halves(x)
        e = _interleaved(even, 4)
        o = _interleaved(odd, 4)
        parts = (e[0], o[0], e[1], o[1], e[2], o[2], e[3], o[3])  # type: ignore[assignment]
    return parts


@triton.jit
def _stacked_queries(
    q_ptr,
    row_stride,
    head_stride,
    scale,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    FORMAT: tl.constexpr,
    PARTS: tl.constexpr,
    KEYS_ARE_M: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Rows x heads of one request, split over dimensions as the codec splits keys,
    and the factor of each row's products."""
    m = tl.arange(0, ROWS_PADDED * HEADS)
    d = tl.arange(0, DIM)
    of_row = q_ptr + (m // HEADS) * row_stride + (m % HEADS) * head_stride
    in_use = m // HEADS < ROWS
    # In one piece: every program reads the same few lines, and part by part they would
    # be fetched once for each. Keys stay in parts: put together they would cross shared
    # memory in narrow pieces, at half the speed.
    q = tl.load(of_row[:, None] + d[None, :], mask=in_use[:, None], other=0.0)
    unit, inverse = _units(q, FORMAT)
    if FORMAT == 2:
        q = (bf16_to_fp32(q) * inverse[:, None]).to(tl.float16)
    if INTERPRETED:
        q = q.to(tl.float32)
    parts = ()
    for part in tl.static_range(PARTS):
        x = _interleaved(q, PARTS)[part]
        part_q = tl.trans(x) if KEYS_ARE_M else x
        parts = parts + (part_q,)  # type: ignore[assignment]  # noqa: RUF005
    return parts, unit * scale


@triton.jit(do_not_specialize=["batch", "min_visible"])
def score_kernel(
    q_ptr,
    keys_ptr,
    key_scale_ptr,
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
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    SCALE_PAGE_STRIDE: tl.constexpr,
    BATCH_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    FORMAT: tl.constexpr,
    KEYS_ARE_M: tl.constexpr,
    OVERLAP: tl.constexpr,
    SETTLED: tl.constexpr,
    MAXIMA: tl.constexpr,
    GROUP: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Each program takes an equal run of the tiles of all requests, laid end to end.

    The grid is static and the lengths are on the device, so a captured graph serves
    any lengths; a long request next to short ones is spread over all programs.
    """
    if OVERLAP:
        # Let the next kernel be placed, and read nothing that this one's predecessor
        # may still write: of what is settled, lengths and the first page ids.
        tl.extra.cuda.gdc_launch_dependents()
        if not SETTLED:
            tl.extra.cuda.gdc_wait()
    # Values of a key in one element of memory.
    PARTS: tl.constexpr = 8 if FORMAT == 3 else 4 if FORMAT == 2 else 1
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    w = tl.arange(0, ROWS_PADDED)
    b = tl.arange(0, BATCH_PADDED)
    visible = tl.load(
        visible_ptr + b[:, None] * ROWS + w[None, :],
        mask=(b < batch)[:, None] & (w < ROWS)[None, :],
        other=0,
    )
    longest = tl.minimum(tl.max(visible, 1), columns)
    tiles = tl.where(longest > min_visible, tl.cdiv(longest, BLOCK), 0)
    ends = tl.cumsum(tiles, 0)
    total = tl.sum(tiles, 0)
    share = total // programs
    extra = total % programs
    first = program * share + tl.minimum(program, extra)
    last = first + share + (program < extra).to(tl.int32)
    first_request = tl.sum((ends <= first).to(tl.int32), 0)
    last_request = tl.sum((ends < last).to(tl.int32), 0)
    n0 = tl.arange(0, BLOCK)
    # A page id past the last visible block is 0, so that keys can be read without a
    # mask: page 0 is there to be read, and what comes of it is not stored. Ids come one
    # tile ahead: with the dependent load inside the iteration Triton spends its stages
    # on the ids instead of on the keys.
    from_tile = first - tl.sum(tl.where(b < first_request, tiles, 0), 0)
    length = tl.sum(tl.where(b == first_request, longest, 0), 0)
    table = page_table_ptr + tl.cast(first_request, tl.int64) * table_stride
    table += n0 // PAGE
    entry = from_tile * (BLOCK // PAGE)
    page = tl.load(table + entry, mask=from_tile * BLOCK + n0 < length, other=0)
    if OVERLAP and SETTLED:
        # L2 is where the predecessor's writes arrive too, so keys may be on their way
        # there before it is done. Programs without work stay away: all of them at one
        # page would take longer than the scores of a short request.
        LINE: tl.constexpr = 64 if FORMAT == 0 else 128 if FORMAT == 1 else 32
        LINES: tl.constexpr = (DIM // PARTS + LINE - 1) // LINE
        of_line = keys_ptr + page.to(tl.int64) * PAGE_STRIDE
        of_line += (n0 % PAGE) * (DIM // PARTS)
        _prefetch(
            of_line[:, None] + (tl.arange(0, LINES) * LINE)[None, :], first < last
        )
        tl.extra.cuda.gdc_wait()
    if first >= last:
        return
    d = tl.arange(0, DIM // PARTS)
    of_key = (keys_ptr + (n0 % PAGE) * (DIM // PARTS))[:, None] + d[None, :]
    of_scale = key_scale_ptr + n0 % PAGE
    for request in tl.range(first_request, last_request + 1):
        wide = tl.cast(request, tl.int64)
        begin = tl.sum(tl.where(b < request, tiles, 0), 0)
        count = tl.sum(tl.where(b == request, tiles, 0), 0)
        length = tl.sum(tl.where(b == request, longest, 0), 0)
        from_tile = tl.maximum(first - begin, 0)
        to_tile = tl.minimum(last - begin, count)
        table = page_table_ptr + wide * table_stride + n0 // PAGE
        row_end = tl.load(visible_ptr + request * ROWS + w, mask=w < ROWS, other=0)
        row_end = tl.minimum(row_end, length)
        queries, unit = _stacked_queries(
            q_ptr + wide * q_request_stride, q_row_stride, q_head_stride, scale, ROWS,
            ROWS_PADDED, HEADS, DIM, FORMAT, PARTS, KEYS_ARE_M, INTERPRETED,
        )  # fmt: skip
        of_row = out_ptr + wide * out_request_stride
        of_row += w.to(tl.int64) * out_row_stride
        maxima_of_row = maxima_ptr + wide * maxima_request_stride
        maxima_of_row += w.to(tl.int64) * maxima_row_stride
        for tile in tl.range(from_tile, to_tile, num_stages=STAGES):
            n = tile * BLOCK + n0
            here = page.to(tl.int64)
            entry = (tile + 1) * (BLOCK // PAGE)
            page = tl.load(table + entry, mask=n + BLOCK < length, other=0)
            key_scale = here
            if FORMAT >= 2:
                key_scale = tl.load(of_scale + here * SCALE_PAGE_STRIDE)
            read = tl.load(of_key + (here * PAGE_STRIDE)[:, None])
            s = _products(
                queries, read, key_scale, DIM, FORMAT, PARTS, KEYS_ARE_M, INTERPRETED
            )
            sums = _head_sums(s, unit, BLOCK, ROWS_PADDED, HEADS, KEYS_ARE_M)
            if FORMAT == 2:
                # relu(q . ck) = c relu(q . k) for c >= 0
                sums = sums * key_scale[None, :]
            seen = n[None, :] < row_end[:, None]
            tl.store(of_row[:, None] + n[None, :], sums, mask=seen)
            if MAXIMA:
                GROUPS: tl.constexpr = BLOCK // GROUP
                best = tl.where(seen, sums, 0.0)
                best = tl.max(tl.reshape(best, (ROWS_PADDED, GROUPS, GROUP)), 2)
                g = tile * GROUPS + tl.arange(0, GROUPS)
                some = g[None, :] * GROUP < row_end[:, None]
                tl.store(maxima_of_row[:, None] + g[None, :], best, mask=some)
        following = tl.sum(tl.where(b == request + 1, longest, 0), 0)
        page = tl.load(table + table_stride, mask=n0 < following, other=0)
