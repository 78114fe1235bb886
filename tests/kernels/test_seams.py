"""What SGLang calls gives what the ops give: row counts, padded heads, fall-backs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.hooks import qsa_ops
from sglang_qsa_kernels.score import HEAD_DIM, HEADS
from sglang_qsa_kernels.score.reference import score_reference
from sglang_qsa_kernels.topk.reference import topk_reference

UNUSED: Any = None
PAGE = 16
PAGES_PER_REQUEST = 70
WIDTH = PAGES_PER_REQUEST * PAGE


def forward_batch(rows: int | None) -> Any:
    """A verify of `rows` tokens for each request, or a plain decode step."""
    mode = SimpleNamespace(
        is_target_verify=lambda: rows is not None, is_draft_extend_v2=lambda: False
    )
    return SimpleNamespace(
        forward_mode=mode, spec_info=SimpleNamespace(draft_token_num=rows)
    )


@pytest.mark.parametrize("rows", [None, 2, 4])
@pytest.mark.parametrize("padded_heads", [HEADS, 8])
def test_decode_selection_is_the_reference_s(
    device: torch.device, rows: int | None, padded_heads: int
) -> None:
    together, requests = rows or 1, 3
    generator = torch.Generator(device).manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, device=device)
        return values.to(torch.bfloat16)

    count = requests * together
    q = normal(count, padded_heads, HEAD_DIM)
    q[:, HEADS:] = 0
    pages = requests * PAGES_PER_REQUEST + 1
    cache = normal(pages, PAGE, 1, HEAD_DIM)
    order = torch.randperm(pages - 1, generator=generator, device=device) + 1
    tables = order.reshape(requests, -1).to(torch.int32)
    per_row = tables.repeat_interleave(together, 0).contiguous()
    base = torch.tensor([300, 520, 1100], device=device).repeat_interleave(together)
    step = torch.arange(together, device=device).repeat(requests) // 2
    lengths = (base + step).to(torch.int32)
    indexer = SimpleNamespace(index_n_heads=HEADS)

    def select(_indexer: Any, *call: Any) -> torch.Tensor:
        return qsa_ops.select_decode_tokens(
            indexer,
            q,
            cache,
            per_row,
            lengths,
            WIDTH,
            UNUSED,
            UNUSED,
            defer_expansion=True,
        )

    blocks = qsa_ops.forward_of_indexer(
        select, indexer, UNUSED, UNUSED, forward_batch(rows), None
    )
    scores = score_reference(
        q[:, :HEADS].unflatten(0, (requests, together)),
        cache[:, :, 0],
        tables,
        lengths.view(requests, together),
        scale=1 / math.sqrt(HEAD_DIM),
    ).view(count, -1)
    wanted = topk_reference(scores.nan_to_num(0), lengths)
    same = (blocks == wanted).float().mean()
    # The interpreter sums in another order: a pair at the edge may change places.
    assert same > 0.99


def test_rows_are_forgotten_after_a_forward() -> None:
    def fail(*_args: Any) -> None:
        assert qsa_ops._rows_per_request == 4
        raise RuntimeError("a forward that fails")

    with pytest.raises(RuntimeError, match="a forward that fails"):
        qsa_ops.forward_of_indexer(fail, None, UNUSED, UNUSED, forward_batch(4))
    assert qsa_ops._rows_per_request == 1


def test_other_widths_are_left_to_sglang(device: torch.device) -> None:
    calls = []

    def original(*args: Any) -> torch.Tensor:
        calls.append(args)
        return torch.zeros(1)

    scores = torch.zeros(2, 64, device=device)
    lengths = torch.full((2,), 64, dtype=torch.int32, device=device)
    qsa_ops.fast_topk(original, scores, lengths, topk=2048, row_starts=None)
    assert [call[2] for call in calls] == [2048]


def test_caches_that_cannot_be_read_in_place_are_left_to_sglang() -> None:
    pool = SimpleNamespace(
        get_key_buffer=lambda _layer: torch.zeros(1, dtype=torch.uint8)
    )
    backend = SimpleNamespace(token_to_kv_pool=pool)
    layer = SimpleNamespace(layer_id=0)
    answer = torch.ones(1)
    out = qsa_ops.forward_paged_attention(
        lambda *_args: answer, backend, torch.zeros(1), layer, None, UNUSED
    )
    assert out is answer
