"""The Triton kernels behind the signatures that SGLang's QSA backend calls.

Each function takes upstream's own arguments, so that what binds it needs to know
nothing. `sglang_qsa_kernels` is imported when one of them is first bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_qsa_kernels.score import MAX_ROWS, MAXIMA_GROUP, score
from sglang_qsa_kernels.sparse_decode import sparse_decode
from sglang_qsa_kernels.topk import SELECTED_BLOCKS, topk

_READABLE = (torch.bfloat16, torch.float8_e4m3fn)
"""K and V that `sparse_decode` reads in place."""

_DIRECT = SELECTED_BLOCKS * MAXIMA_GROUP
"""Blocks of the longest row that is selected from without maxima."""
PREFILL_WIDTHS = (
    SELECTED_BLOCKS,
    SELECTED_BLOCKS + 1,
    2 * _DIRECT,
    2 * _DIRECT - 1,
    _DIRECT + MAXIMA_GROUP,
    _DIRECT + 1,
)
"""Of scores: each combination of strides that are multiples of 16 and others."""

_rows_per_request = 1
"""Of the forward that runs now; a scheduler process runs one at a time."""


def warm_up(device: torch.device) -> None:
    """Compile the selection of prefills for all widths that they have.

    Triton compiles anew where a stride of scores or of their maxima is a multiple of 16
    or not, and for rows of more than 8,192 blocks. Left to the first prefill of each
    kind, every compile would stop a server for seconds.
    """
    row = torch.zeros(1, dtype=torch.int32, device=device)
    for width in PREFILL_WIDTHS:
        topk(torch.empty((1, width), device=device), row, row)


def fast_topk(
    original: Callable[..., torch.Tensor],
    scores: torch.Tensor,
    lengths: torch.Tensor,
    topk_: int | None = None,
    row_starts: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor:
    """`fast_topk` of sglang 0.5.23; other widths than QSA's are left to it."""
    width = keywords.pop("topk", topk_)
    if width != SELECTED_BLOCKS or not scores.is_cuda:
        return original(scores, lengths, width, row_starts, **keywords)
    return topk(scores, lengths, row_starts)


def forward_of_indexer(
    original: Callable[..., Any],
    indexer: Any,
    hidden_states: torch.Tensor,
    positions: torch.Tensor,
    forward_batch: Any,
    *rest: Any,
) -> Any:
    """Note how many query rows each request has, which the scorer is not told."""
    with _rows(forward_batch):
        return original(indexer, hidden_states, positions, forward_batch, *rest)


@contextmanager
def _rows(forward_batch: Any) -> Iterator[None]:
    global _rows_per_request
    mode = forward_batch.forward_mode
    several = mode.is_target_verify() or mode.is_draft_extend_v2()
    spec = forward_batch.spec_info if several else None
    _rows_per_request = getattr(spec, "draft_token_num", None) or 1
    try:
        yield
    finally:
        _rows_per_request = 1


def select_decode_tokens(
    indexer: Any,
    q: torch.Tensor,
    compressed_cache: torch.Tensor,
    compressed_page_table: torch.Tensor,
    compressed_lengths: torch.Tensor,
    max_model_len: int,
    query_positions: torch.Tensor,
    sequence_lengths: torch.Tensor,
    defer_expansion: bool = False,
) -> torch.Tensor:
    """`QSAIndexer.select_decode_tokens` of sglang 0.5.23: score, then select.

    Query rows of one request follow each other and share its page table.
    """
    rows = q.shape[0]
    together = _rows_per_request
    if rows % together or together > MAX_ROWS:
        together = 1
    requests = rows // together
    pages, page_size, _, dim = compressed_cache.shape
    # Upstream pads the heads for its own kernel.
    stacked = q[:, : indexer.index_n_heads].unflatten(0, (requests, together))
    lengths = compressed_lengths.to(torch.int32)
    width = -(-max_model_len // MAXIMA_GROUP)
    scores, maxima = (
        torch.empty((requests, together, columns), dtype=torch.float32, device=q.device)
        for columns in (max_model_len, width)
    )
    score(
        stacked,
        compressed_cache.view(pages, page_size, dim),
        compressed_page_table[::together],
        lengths.view(requests, together),
        scale=1 / math.sqrt(dim),
        out=scores,
        maxima=maxima,
        min_visible=SELECTED_BLOCKS,
        # A graph's metadata is written before its replay; outside of one the lengths
        # may come from the kernel just before.
        settled=q.is_cuda and torch.cuda.is_current_stream_capturing(),
    )
    blocks = topk(scores.view(rows, -1), lengths, maxima=maxima.view(rows, -1))
    if defer_expansion:
        return blocks
    from sglang.srt.layers.attention.qsa.kernel import expand_qsa_block_indices

    expanded: torch.Tensor = expand_qsa_block_indices(
        blocks,
        query_positions,
        sequence_lengths,
        compress_ratio=indexer.compress_ratio,
        token_topk=indexer.token_topk,
    )
    return expanded


def forward_paged_attention(
    original: Callable[..., torch.Tensor],
    backend: Any,
    q: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    topk_indices: torch.Tensor,
) -> torch.Tensor:
    """`QwenSparseAttnBackend._forward_paged_attention` of sglang 0.5.23, in place."""
    pool = backend.token_to_kv_pool
    k_cache = pool.get_key_buffer(layer.layer_id)
    if not q.is_cuda or k_cache.dtype not in _READABLE:
        return original(backend, q, layer, forward_batch, topk_indices)
    metadata = backend._resolve_metadata(forward_batch)
    tokens = backend._expand_block_indices(topk_indices, metadata)
    row_requests = metadata.row_req_pool_indices
    if row_requests is None:
        row_requests = forward_batch.req_pool_indices
    out = sparse_decode(
        q,
        k_cache,
        pool.get_value_buffer(layer.layer_id),
        tokens.to(torch.int32).contiguous(),
        backend.req_to_token_pool.req_to_token,
        row_requests,
        metadata.sequence_lengths,
        softmax_scale=layer.scaling,
    )
    return out.reshape(q.shape[0], -1)
