"""`sparse_decode` equals attention in fp64 over the selected tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sglang_qsa_kernels.sparse_decode import sparse_decode
from sglang_qsa_kernels.sparse_decode.cases import CASES, Case, Inputs, inputs
from sglang_qsa_kernels.sparse_decode.reference import sparse_decode_reference
from sglang_qsa_kernels.sparse_decode.tiles import Tiles

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TOLERANCE = 4e-3
"""Of the norm: two roundings to bf16, of the weights and of the result."""


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def run(given: Inputs, tiles: Tiles | None = None) -> torch.Tensor:
    return sparse_decode(*given.positional, **given.named, tiles=tiles)  # type: ignore[arg-type]


def error(found: torch.Tensor, given: Inputs) -> float:
    wanted = sparse_decode_reference(
        *given.positional,
        **given.named,  # type: ignore[arg-type]
        dtype=torch.float64,
    )
    assert found.isfinite().all()
    empty = wanted.flatten(1).norm(dim=1) == 0
    assert not found[empty].any()
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_attention_over_the_selection(case: Case) -> None:
    if case.gpu_only and not GPU:
        pytest.skip("needs a CUDA device")
    given = inputs(case, DEVICE)
    assert error(run(given), given) < TOLERANCE


@pytest.mark.parametrize("programs_per_sm", [1, 200])
@pytest.mark.parametrize("name", ["short rows, bf16", "short rows, fp8"])
def test_splits_do_not_matter(name: str, programs_per_sm: int) -> None:
    given = inputs(named(name), DEVICE)
    tiles = Tiles(block=16, warps=4, stages=2, programs_per_sm=programs_per_sm)
    assert error(run(given, tiles), given) < TOLERANCE


@pytest.mark.parametrize("name", ["short rows, bf16", "short rows, fp8"])
def test_rows_without_a_token_are_zero(name: str) -> None:
    given = inputs(named(name), DEVICE)
    given.tokens[0] = -1
    given.lengths[3] = 0
    for programs_per_sm in (1, 200):
        tiles = Tiles(block=16, warps=4, stages=2, programs_per_sm=programs_per_sm)
        found = run(given, tiles)
        assert not found[0].any()
        assert not found[3].any()
        assert error(found, given) < TOLERANCE


def test_gaps_and_tokens_past_the_length_are_left_out() -> None:
    given = inputs(named("short rows, bf16"), DEVICE)
    given.tokens[-1, 3:40] = -1
    given.tokens[-1, 50] = 1 << 30
    assert error(run(given), given) < TOLERANCE


def test_a_selection_without_columns_is_zero() -> None:
    given = inputs(named("short rows, bf16"), DEVICE)
    assert not run(dataclasses.replace(given, tokens=given.tokens[:, :0])).any()


def test_scales_of_any_size() -> None:
    given = inputs(named("short rows, fp8"), DEVICE)
    assert given.v_scales is not None
    for factor in (1e-30, 1e30):
        scaled = dataclasses.replace(given, v_scales=given.v_scales * factor)
        found = run(scaled)
        scale = 2.0**-100 if factor > 1 else 2.0**100
        wanted = sparse_decode_reference(
            *scaled.positional,
            **scaled.named,  # type: ignore[arg-type]
            dtype=torch.float64,
        )
        difference = (found.double() - wanted) * scale
        assert float(difference.norm() / (wanted * scale).norm()) < TOLERANCE


@pytest.mark.parametrize("name", ["verify, bf16", "short rows, fp8"])
def test_every_call_gives_the_same_bits(name: str) -> None:
    given = inputs(named(name), DEVICE)
    first = run(given)
    for _ in range(1_000 if GPU else 1):
        assert torch.equal(run(given), first)


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_captured_graph_follows_its_inputs() -> None:
    given = inputs(named("mixed contexts, bf16"), DEVICE)
    run(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(given)
    given.lengths.sub_(1)
    given.q.mul_(-1)
    found.fill_(torch.nan)
    graph.replay()
    assert error(found, given) < TOLERANCE


GOOD = inputs(named("short rows, fp8"), torch.device("cpu"))
PLAIN = inputs(named("short rows, bf16"), torch.device("cpu"))


GAPS = torch.cat((GOOD.v_cache, GOOD.v_cache), 2)[..., : GOOD.q.shape[2]]
assert GOOD.k_scales is not None
assert GOOD.v_scales is not None


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (GOOD, {"q": GOOD.q.half()}, "q: found float16.*wanted bfloat16"),
        (GOOD, {"q": GOOD.q.mT.contiguous().mT}, "q: found strides.*unit stride"),
        (GOOD, {"q": GOOD.q[..., :200]}, "q: found heads of 200"),
        (GOOD, {"q": GOOD.q[:, :23]}, "23 heads.*multiple of 2 KV heads"),
        (GOOD, {"k_cache": GOOD.k_cache.float()}, "k_cache: found float32.*float8"),
        (GOOD, {"k_cache": GOOD.k_cache[..., :128]}, "k_cache.*any, 256"),
        (GOOD, {"k_cache": GOOD.k_cache.to("meta")}, "k_cache.*wanted.*on cpu"),
        (GOOD, {"v_cache": GOOD.v_cache[1:]}, "v_cache: found float8"),
        (GOOD, {"v_cache": GOOD.v_cache.bfloat16()}, "v_cache.*wanted float8"),
        (GOOD, {"v_cache": GAPS}, "v_cache.*without gaps"),
        (GOOD, {"v_scales": None}, "found one of them.*both or none"),
        (GOOD, {"k_scales": GOOD.k_scales.half()}, "k_scales: found float16"),
        (GOOD, {"v_scales": GOOD.v_scales.T.contiguous().T}, "v_scales.*unit stride"),
        (
            GOOD,
            {"v_scales": GAPS[..., 0].float()[:, :2].repeat(1, 2)[:, :2]},
            "those of",
        ),
        (PLAIN, {"k_scales": GOOD.k_scales, "v_scales": GOOD.v_scales}, "of float8"),
        (GOOD, {"tokens": GOOD.tokens.long()}, "tokens: found int64.*int32"),
        (GOOD, {"tokens": GOOD.tokens[1:]}, r"tokens: found int32 \[6"),
        (GOOD, {"token_slots": GOOD.token_slots[0]}, "token_slots.*any, any"),
        (GOOD, {"token_slots": GOOD.token_slots[:, ::2]}, "token_slots.*unit stride"),
        (GOOD, {"row_requests": GOOD.row_requests.float()}, "row_requests.*int32"),
        (GOOD, {"lengths": GOOD.lengths[1:]}, r"lengths.*\[7\]"),
        (GOOD, {"lengths": GOOD.lengths.to("meta")}, "lengths.*on cpu"),
    ],
)
def test_refuses(given: Inputs, changes: dict[str, object], message: str) -> None:
    broken = dataclasses.replace(given, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message) as refused:
        run(broken)
    assert "\n" not in str(refused.value)
