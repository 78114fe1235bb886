"""Stacked QSA scorer for decode, MTP verify and draft-extend.

A request's query rows and index heads form one matrix operand, so its compressed keys
are read once per layer instead of once per row:

    out[b, w, n] = scale * sum over h of relu(q[b, w, h] . key[b, n])

for n < visible[b, w], where key[b, n] lies in page `page_table[b, n // page_size]` at
row n % page_size.

What is written. Row [b, w] of `out` is written in full from 0 to `visible[b, w]` and
nothing beyond it, unless no row of request b sees more than `min_visible` blocks: then
every block is selected anyway, and nothing of the request is written. With `maxima`,
[b, w, g] is the largest score of blocks 16g to 16g + 15 that the row sees, for every
such group with a visible block; `topk` takes it instead of reading all scores.

Nothing is read on the host. One CUDA graph serves any lengths up to the table's width,
and each program reads an equal share of the live keys of the whole batch.
"""

from __future__ import annotations

from typing import Final

import torch
import triton

from sglang_qsa_kernels.checks import refuse, require
from sglang_qsa_kernels.codec import MXFP4_GROUP
from sglang_qsa_kernels.interpreter import INTERPRETED
from sglang_qsa_kernels.score import hopper
from sglang_qsa_kernels.score.kernel import score_kernel
from sglang_qsa_kernels.score.tiles import (
    HopperTile,
    KeyFormat,
    Tile,
    padded_batch,
    programs,
    tile_for,
)

HEADS: Final = 4
HEAD_DIM: Final = 128
MAX_ROWS: Final = 4
"""Query rows per request: a verify of four drafts, as the raw key ring holds."""
MAXIMA_GROUP: Final = 16
"""Scores under one group maximum; the same as `topk`'s."""

_MMA_ROWS = 16
_PAGE_SIZES = (8, 16, 32, 64)


def score(
    q: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    key_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    maxima: torch.Tensor | None = None,
    min_visible: int = 0,
    settled: bool = False,
) -> torch.Tensor:
    """Score the compressed keys of every request for each of its query rows.

    Args:
        q: [requests, rows, 4, 128] bf16, or e4m3 for unscaled e4m3 keys; 1 to 4 rows.
            Unit stride in the last dimension, any other strides.
        keys: [pages, page_size, 128] bf16 or e4m3, or [pages, page_size, 64] uint8
            (MXFP4). A page is contiguous; pages may lie apart. page_size is 8, 16,
            32 or 64; page 0 exists and may hold anything.
        page_table: [requests, pages_per_request] int32, a page of `keys` each. Read
            only where a row sees a block.
        visible: [requests, rows] int32, blocks that a row sees.
        scale: factor of every score, positive; 1 / sqrt(128) for QSA.
        key_scale: fp32 [pages, page_size] for scaled e4m3 keys (compute capability
            8.9), uint8 E8M0 [pages, page_size, 4] for MXFP4. Pages as in `keys`.
        out: [requests, rows, columns] fp32 to write into, unit stride in the last
            dimension. Columns at or past its width are not scored.
        maxima: [requests, rows, at least columns / 16 rounded up] fp32 to fill.
        min_visible: leave out requests whose rows all see at most this many blocks.
        settled: `page_table` and `visible` were complete before the kernel ahead of
            this call began, as a step's metadata is in a captured graph. They are then
            read while that kernel still runs.
    Returns:
        `out`, by default a new [requests, rows, pages_per_request * page_size].
    Raises:
        ValueError: an argument is not as described.
    Source: sglang/srt/layers/attention/qsa/mqa.py@0.5.23, `tilelang_qsa_mqa_decode`.
    """
    key_format = _key_format(q, keys, key_scale)
    requests, rows = _check_queries(q, page_table, visible)
    columns = page_table.shape[1] * keys.shape[1]
    if out is None:
        shape = (requests, rows, columns)
        out = torch.empty(shape, dtype=torch.float32, device=q.device)
    _check_outputs(q, out, maxima)
    columns = min(columns, out.shape[2])
    if requests and columns:
        tile = tile_for(
            key_format,
            q.device,
            requests=requests,
            hopper=hopper.takes(keys, requests),
        )
        launch(
            q, keys, page_table, visible, scale, key_scale, out, maxima, min_visible,
            columns, settled, key_format, tile,
        )  # fmt: skip
    return out


def launch(
    q: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    key_scale: torch.Tensor | None,
    out: torch.Tensor,
    maxima: torch.Tensor | None,
    min_visible: int,
    columns: int,
    settled: bool,
    key_format: KeyFormat,
    tile: Tile | HopperTile,
) -> None:
    """`score` with a given tile, unchecked. For `score`, and for tuning."""
    if isinstance(tile, HopperTile):
        hopper.launch(
            q, keys, page_table, visible, scale, out, maxima, min_visible, columns,
            settled, MAXIMA_GROUP, tile,
        )  # fmt: skip
        return
    requests, rows, heads, dim = q.shape
    if key_scale is not None:
        # The decoders read words: four e4m3 or eight E2M1 values, four exponents.
        keys = keys.view(torch.int32)
        key_scale = key_scale.view(
            torch.float32 if key_scale.ndim == 2 else torch.int32
        )
    score_kernel[(programs(tile, requests, columns, q.device),)](
        q,
        keys,
        keys if key_scale is None else key_scale,
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
        ROWS_PADDED=max(triton.next_power_of_2(rows), _MMA_ROWS // heads),
        HEADS=heads,
        DIM=dim,
        PAGE=keys.shape[1],
        # Of a pool, so constant in a process: a multiplication by a known number is
        # one instruction in the loop instead of three.
        PAGE_STRIDE=keys.stride(0),
        SCALE_PAGE_STRIDE=0 if key_scale is None else key_scale.stride(0),
        BATCH_PADDED=padded_batch(requests),
        BLOCK=tile.block_keys,
        STAGES=tile.stages,
        FORMAT=int(key_format),
        KEYS_ARE_M=tile.keys_are_m,
        OVERLAP=tile.overlap,
        SETTLED=settled,
        MAXIMA=maxima is not None,
        GROUP=MAXIMA_GROUP,
        INTERPRETED=INTERPRETED,
        num_warps=tile.warps,
        launch_pdl=tile.overlap,
    )


def _key_format(
    q: torch.Tensor, keys: torch.Tensor, key_scale: torch.Tensor | None
) -> KeyFormat:
    """The format that the dtypes name, with keys and their scales checked."""
    wanted = {
        (torch.bfloat16, torch.bfloat16, None): KeyFormat.BF16,
        (torch.float8_e4m3fn, torch.float8_e4m3fn, None): KeyFormat.E4M3,
        (torch.bfloat16, torch.float8_e4m3fn, torch.float32): KeyFormat.E4M3_SCALED,
        (torch.bfloat16, torch.uint8, torch.uint8): KeyFormat.MXFP4,
    }
    found = (q.dtype, keys.dtype, None if key_scale is None else key_scale.dtype)
    if found not in wanted:
        raise refuse(
            origin="score: q, keys and key_scale",
            found=f"dtypes {_names(found)}",
            wanted=f"one of {', '.join(_names(each) for each in wanted)}",
            way_out="cast the queries to what the stored keys need",
        )
    key_format = wanted[found]
    packed = key_format == KeyFormat.MXFP4
    width = HEAD_DIM // 2 if packed else HEAD_DIM
    require(keys, "score: keys", (None, None, width), (keys.dtype,), q.device)
    pages, page_size, _ = keys.shape
    if page_size not in _PAGE_SIZES or keys.stride()[1:] != (width, 1):
        raise refuse(
            origin="score: keys",
            found=f"page size {page_size}, strides {list(keys.stride())}",
            wanted=f"8, 16, 32 or 64 and contiguous pages, strides [any, {width}, 1]",
            way_out="pass the pool as [pages, page_size, ...] without copying it",
        )
    if key_scale is not None:
        groups = (HEAD_DIM // MXFP4_GROUP,) if packed else ()
        shape = (pages, page_size, *groups)
        require(key_scale, "score: key_scale", shape, (key_scale.dtype,), q.device)
        _check_words(keys, key_scale)
    return key_format


def _check_words(keys: torch.Tensor, key_scale: torch.Tensor) -> None:
    """Refuse pages that cannot be read as 32-bit words."""
    steps = [x.stride(0) * x.element_size() % 4 for x in (keys, key_scale)]
    starts = [x.data_ptr() % 4 for x in (keys, key_scale)]
    if any(steps + starts) or (len(key_scale) and not key_scale[0].is_contiguous()):
        raise refuse(
            origin="score: keys and key_scale",
            found=f"strides {keys.stride()} and {key_scale.stride()}, "
            f"first bytes {starts} past a word",
            wanted="contiguous pages at multiples of 4 bytes",
            way_out="allocate scales as [pages, page_size, ...], keys on a word",
        )


def _check_queries(
    q: torch.Tensor, page_table: torch.Tensor, visible: torch.Tensor
) -> tuple[int, int]:
    require(q, "score: q", (None, None, HEADS, HEAD_DIM), (q.dtype,), q.device)
    requests, rows = q.shape[:2]
    if not 1 <= rows <= MAX_ROWS or q.stride(3) != 1:
        raise refuse(
            origin="score: q",
            found=f"{rows} rows per request, last stride {q.stride(3)}",
            wanted=f"1 to {MAX_ROWS} rows and a last stride of 1",
            way_out="score prefill rows with SGLang's packed scorer",
        )
    int32 = (torch.int32,)
    require(page_table, "score: page_table", (requests, None), int32, q.device)
    require(visible, "score: visible", (requests, rows), int32, q.device)
    if requests and (page_table.stride(1) != 1 or not visible.is_contiguous()):
        raise refuse(
            origin="score: page_table and visible",
            found=f"strides {page_table.stride()} and {visible.stride()}",
            wanted="unit stride along a request's pages, and contiguous lengths",
            way_out="call .contiguous() where the metadata is built, once per step",
        )
    return requests, rows


def _check_outputs(
    q: torch.Tensor, out: torch.Tensor, maxima: torch.Tensor | None
) -> None:
    requests, rows = q.shape[:2]
    shape = (requests, rows, None)
    require(out, "score: out", shape, (torch.float32,), q.device)
    groups = triton.cdiv(out.shape[2], MAXIMA_GROUP)
    if maxima is not None:
        require(maxima, "score: maxima", shape, (torch.float32,), q.device)
    outputs = [tensor for tensor in (out, maxima) if tensor is not None]
    strides = [tensor.stride(2) for tensor in outputs if tensor.numel()]
    if (maxima is not None and maxima.shape[2] < groups) or strides.count(1) < len(
        strides
    ):
        raise refuse(
            origin="score: out and maxima",
            found=f"{[list(x.shape) for x in outputs]}, last strides {strides}",
            wanted=f"unit last strides, and at least {groups} groups in maxima",
            way_out="allocate maxima as [requests, rows, columns / 16 rounded up]",
        )


def _names(dtypes: tuple[torch.dtype | None, ...]) -> str:
    return " × ".join(str(dtype).removeprefix("torch.") for dtype in dtypes if dtype)
