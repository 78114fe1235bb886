"""The selection that training uses is transformers' own, and can be taught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as upstream

from benchmarks.trained_model import model as small
from benchmarks.trained_model.selection import Teacher, vectorised


def test_the_same_tokens_where_blocks_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Few heads give many scores of 0, and transformers has no rule for ties.
    monkeypatch.setitem(small.TEXT_CONFIG, "indexer_n_heads", 16)
    model = small.build(seed=1).model.language_model
    for layer in model.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.indexer.block_topk = 6
            layer.self_attn.indexer.token_budget = 24
    ids = torch.randint(3, 500, (2, 61), generator=torch.Generator().manual_seed(2))
    seen: dict[str, list[torch.Tensor]] = {}

    def keeping(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: object, *arguments: Any) -> Any:
            mask = forward(module, *arguments)
            seen.setdefault(name, []).append(mask & arguments[2])
            return mask

        return call

    indexer = upstream.Qwen4ExpTextQSAIndexer
    with torch.no_grad():
        with mock.patch.object(indexer, "forward", keeping("theirs", indexer.forward)):
            theirs = model(ids, use_cache=False).last_hidden_state
        with (
            vectorised(),
            mock.patch.object(indexer, "forward", keeping("ours", indexer.forward)),
        ):
            ours = model(ids, use_cache=False).last_hidden_state
    assert len(seen["ours"]) == len(seen["theirs"]) == 2
    for one, other in zip(seen["ours"], seen["theirs"], strict=True):
        assert torch.equal(one, other)
        assert one[:, 0, -1].sum(-1).eq(25).all(), "6 blocks of 4, and a tail of 1"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_its_loss_falls_and_moves_the_indexers_alone() -> None:
    model = small.build(seed=1)
    text = model.model.language_model
    ids = torch.randint(3, 500, (4, 96), generator=torch.Generator().manual_seed(2))
    indexers = [p for n, p in text.named_parameters() if ".indexer." in n]
    optimizer = torch.optim.Adam(indexers, lr=3e-3)
    losses = []
    for _ in range(30):
        teacher = Teacher(64, torch.Generator().manual_seed(3))
        with vectorised(teacher):
            text(ids, use_cache=False)
        loss = torch.stack(teacher.losses).mean()
        model.zero_grad()
        loss.backward()
        moved = {n for n, p in text.named_parameters() if p.grad is not None}
        assert moved == {n for n, _ in text.named_parameters() if ".indexer." in n}
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses
