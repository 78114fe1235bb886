"""The sparse selection of QSA, vectorised, and a loss that teaches it.

transformers' indexer walks over queries one by one, and top-k passes no gradient. Here
all queries are scored at once, and the scores learn where the dense attention of the
same layer looks (the lightning indexer of DeepSeek-V3.2 is trained so, arXiv
2512.02556, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers.models.qwen4_exp import modeling_qwen4_exp as upstream

Tensor = torch.Tensor
Positions = tuple[Tensor, Tensor]
"""Cosines and sines, [batch, tokens, rotary dims] each."""


class Teacher:
    """Collects the loss of every sparse layer of one forward.

    Args:
        queries: rows of each sequence, drawn at random, that the loss is taken at.
    """

    def __init__(self, queries: int, generator: torch.Generator) -> None:
        self._queries = queries
        self._generator = generator
        self.losses: list[Tensor] = []

    def rows(self, tokens: int) -> Tensor:
        """Positions that see one block at least; on the CPU."""
        drawn = torch.randint(
            4, tokens, (min(self._queries, tokens),), generator=self._generator
        )
        return drawn.sort().values


@contextmanager
def vectorised(teacher: Teacher | None = None) -> Iterator[None]:
    """Replace transformers' selection, for training and scoring without a cache.

    Right padding is allowed: no token sees what comes after it.
    """
    indexer, attention = upstream.Qwen4ExpTextQSAIndexer, upstream.Qwen4ExpTextAttention
    before = indexer.forward, attention.forward

    def attend(
        module: Any, hidden: Tensor, positions: Positions, *rest: Any, **options: Any
    ) -> Any:
        if teacher is not None:
            teacher.losses.append(selection_loss(module, hidden, positions, teacher))
        return before[1](module, hidden, positions, *rest, **options)

    indexer.forward = _selected_tokens
    attention.forward = attend
    try:
        yield
    finally:
        indexer.forward, attention.forward = before


def block_scores(
    indexer: Any, hidden: Tensor, positions: Positions, rows: Tensor | None = None
) -> Tensor:
    """Scores of complete blocks for the queries at `rows` (all without it).

    Args:
        hidden: [batch, tokens, hidden size].
    Returns:
        [batch, rows, tokens // ratio], fp32; -inf where a query does not see a block.
    """
    ratio, dim = indexer.compress_ratio, indexer.index_head_dim
    tokens = hidden.shape[1]
    blocks = tokens // ratio
    cos, sin = positions
    at = torch.arange(tokens, device=hidden.device) if rows is None else rows
    split = [indexer.index_n_heads * dim, indexer.index_kv_heads * dim]
    queries, keys = indexer.index_qk_proj(hidden).split(split, dim=-1)
    queries = indexer.q_layernorm(queries[:, at].unflatten(-1, (-1, dim)))
    queries = upstream.apply_rotary_pos_emb(
        queries, cos=cos[:, at], sin=sin[:, at], unsqueeze_dim=2
    )
    keys = keys[:, : blocks * ratio].unflatten(1, (blocks, ratio)).float().mean(2)
    starts = torch.arange(blocks, device=hidden.device) * ratio
    keys = upstream.apply_rotary_pos_emb(
        indexer.k_layernorm(keys.to(hidden.dtype)).unsqueeze(2),
        cos=cos[:, starts],
        sin=sin[:, starts],
        unsqueeze_dim=2,
    ).squeeze(2)
    scores = torch.einsum("brhd,bnd->bhrn", queries.float(), keys.float())
    scores = scores.relu().sum(1) / math.sqrt(dim)
    seen = (at[:, None] + 1) // ratio > torch.arange(blocks, device=hidden.device)
    return scores.masked_fill(~seen, -math.inf)


def selection_loss(
    attention: Any, hidden: Tensor, positions: Positions, teacher: Teacher
) -> Tensor:
    """KL from the layer's dense attention over blocks to the indexer's scores.

    Only the indexer gets a gradient. A query's own last block, which is never dropped
    before it is complete, and its weight are left out.
    """
    hidden = hidden.detach()
    rows = teacher.rows(hidden.shape[1]).to(hidden.device)
    with torch.no_grad():
        target = _attended_blocks(attention, hidden, positions, rows)
    scores = block_scores(attention.indexer, hidden, positions, rows)
    told = scores.log_softmax(-1).masked_fill(scores == -math.inf, 0.0)
    return functional.kl_div(told, target, reduction="sum") / target.sum().clamp_min(1)


def _attended_blocks(
    attention: Any, hidden: Tensor, positions: Positions, rows: Tensor
) -> Tensor:
    """[batch, rows, blocks]: share of the attention to complete blocks, all heads."""
    ratio, dim = attention.indexer.compress_ratio, attention.head_dim
    blocks = hidden.shape[1] // ratio
    cos, sin = positions
    queries = attention.q_proj(hidden[:, rows]).unflatten(-1, (-1, 2 * dim))[..., :dim]
    keys = attention.k_proj(hidden).unflatten(-1, (-1, dim))
    queries = upstream.apply_rotary_pos_emb(
        attention.q_norm(queries), cos=cos[:, rows], sin=sin[:, rows], unsqueeze_dim=2
    )
    keys = upstream.apply_rotary_pos_emb(
        attention.k_norm(keys), cos=cos, sin=sin, unsqueeze_dim=2
    ).repeat_interleave(attention.num_key_value_groups, 2)
    weights = torch.einsum("brhd,bthd->bhrt", queries.float(), keys.float())
    tokens = torch.arange(hidden.shape[1], device=hidden.device)
    weights = (weights * attention.scaling).masked_fill(
        tokens > rows[:, None], -math.inf
    )
    shares = weights.softmax(-1).sum(1)[..., : blocks * ratio]
    shares = shares.unflatten(-1, (blocks, ratio)).sum(-1)
    complete = (rows[:, None] + 1) // ratio > torch.arange(blocks, device=rows.device)
    shares = shares * complete
    normed: Tensor = shares / shares.sum(-1, keepdim=True).clamp_min(1e-9)
    return normed


def _selected_tokens(
    indexer: Any,
    hidden: Tensor,
    positions: Positions,
    attention_mask: Tensor,
    past_key_values: None = None,
) -> Tensor:
    """[batch, 1, queries, tokens], True where a query may look; causal already."""
    assert past_key_values is None
    assert attention_mask.dtype == torch.bool
    batch, tokens, _ = hidden.shape
    ratio, blocks = indexer.compress_ratio, tokens // indexer.compress_ratio
    at = torch.arange(tokens, device=hidden.device)
    if blocks <= indexer.block_topk:
        return (at[:, None] >= at).expand(batch, 1, tokens, tokens)
    with torch.no_grad():
        scores = block_scores(indexer, hidden, positions)
        best = scores.topk(indexer.block_topk, dim=-1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        chosen &= scores > -math.inf
        mask = functional.pad(chosen.repeat_interleave(ratio, -1), (0, tokens % ratio))
        tail = (at >= (at[:, None] + 1) // ratio * ratio) & (at <= at[:, None])
        selected: Tensor = (mask | tail).unsqueeze(1)
        return selected
