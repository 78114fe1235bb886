"""`score` equals its reference in fp64, writes what it owns and reads nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sglang_qsa_kernels.score import MAXIMA_GROUP, hopper, score
from sglang_qsa_kernels.score.cases import (
    CASES,
    SCALE,
    TOLERANCE,
    Case,
    Inputs,
    inputs,
    long_case,
)
from sglang_qsa_kernels.score.reference import maxima_reference, score_reference
from sglang_qsa_kernels.score.tiles import KeyFormat

CHOSEN, TRITON = "chosen", "Triton"
KERNELS = (CHOSEN, TRITON) if torch.cuda.is_available() else (CHOSEN,)
"""The kernel that `score` chooses, and the one that serves every call."""


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bf16 kernel of a test."""
    if request.param == TRITON:
        monkeypatch.setattr(hopper, "takes", lambda *_: False)
    return str(request.param)


def by_kernel(
    name: str, given: dict[str, tuple[Any, KeyFormat]]
) -> pytest.MarkDecorator:
    """Each argument with its format on the chosen kernel, of bf16 also on Triton's."""
    runs = [
        pytest.param(each, kernel, id=label if kernel == CHOSEN else f"{label}, Triton")
        for label, (each, key_format) in given.items()
        for kernel in KERNELS
        if kernel == CHOSEN or key_format == KeyFormat.BF16
    ]
    return pytest.mark.parametrize((name, "kernel"), runs, indirect=["kernel"])


each_case = by_kernel("case", {case.name: (case, case.key_format) for case in CASES})
each_format = by_kernel("key_format", {each.name: (each, each) for each in KeyFormat})


def scored(given: Inputs, **options: Any) -> torch.Tensor:
    return score(
        given.q,
        given.keys,
        given.page_table,
        given.visible,
        scale=SCALE,
        key_scale=given.key_scale,
        **options,
    )


def expected(given: Inputs) -> torch.Tensor:
    return score_reference(
        given.q,
        given.keys,
        given.page_table,
        given.visible,
        scale=SCALE,
        key_scale=given.key_scale,
        dtype=torch.float64,
    )


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    """NaN in the same places, and each row within `tolerance` of its 2-norm."""
    assert torch.equal(found.isnan(), wanted.isnan())
    error = (found.double() - wanted).nan_to_num(0).norm(dim=-1)
    size = wanted.nan_to_num(0).norm(dim=-1)
    assert (error <= tolerance * size).all(), float((error / size).max())


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@each_case
@pytest.mark.usefixtures("kernel")
def test_equals_fp64(case: Case, device: torch.device) -> None:
    (given,) = inputs(case, device)
    found = scored(given)
    assert_close(found, expected(given), TOLERANCE[case.key_format])
    if device.type == "cuda":
        torch.cuda.synchronize()
        assert same_bits(scored(given, settled=True), found)


@each_format
@pytest.mark.usefixtures("kernel")
def test_first_maxima_of_topk(key_format: KeyFormat, device: torch.device) -> None:
    (given,) = inputs(named(f"{key_format.name.lower()}: three rows, ragged"), device)
    columns = given.page_table.shape[1] * given.keys.shape[1]
    groups = -(-columns // MAXIMA_GROUP)
    maxima = torch.empty((*given.visible.shape, groups + 1), device=device)
    wanted = maxima_reference(scored(given, maxima=maxima))
    wanted = torch.where(wanted.isinf(), torch.nan, wanted)
    torch.testing.assert_close(maxima[..., :-1], wanted, rtol=0, atol=0, equal_nan=True)
    assert maxima[..., -1].isnan().all()


@pytest.mark.usefixtures("kernel")
def test_short_requests_are_left_out(device: torch.device) -> None:
    (given,) = inputs(named("bf16: three rows, ragged"), device)
    wanted = expected(given)
    wanted[given.visible.amax(1) <= 64] = torch.nan
    assert_close(scored(given, min_visible=64), wanted, 1e-6)


@pytest.mark.usefixtures("kernel")
def test_writes_within_a_narrow_output(device: torch.device) -> None:
    (given,) = inputs(named("bf16: verify of four"), device)
    held = torch.full((2, 4, 320), -1.0, device=device)
    scored(given, out=held[..., :310])
    wanted = expected(given)[..., :310]
    found = torch.where(wanted.isnan(), torch.nan, held[..., :310])
    assert_close(found, wanted, 1e-6)
    assert (held[..., :310][wanted.isnan()] == -1).all()
    assert (held[..., 310:] == -1).all()


def test_a_row_of_nan_scores_nan(device: torch.device) -> None:
    for name in ("e4m3_scaled", "mxfp4"):
        (given,) = inputs(named(f"{name}: one row, odd"), device)
        page = int(given.page_table[1, 2])
        assert given.key_scale is not None
        if given.keys.dtype == torch.uint8:
            given.key_scale[page, 5, 1] = 255
            given.keys[page, 5] = 0
        else:
            given.key_scale[page, 5] = torch.nan
        (nan,) = scored(given)[1, 0, :130].isnan().nonzero().tolist()
        assert nan == [2 * 16 + 5]


@each_format
@pytest.mark.usefixtures("kernel")
def test_every_call_gives_the_same(key_format: KeyFormat, device: torch.device) -> None:
    (given,) = inputs(named(f"{key_format.name.lower()}: verify of four"), device)
    first = scored(given)
    for _ in range(1_000 if device.type == "cuda" else 2):
        assert same_bits(scored(given), first)


@pytest.mark.usefixtures("kernel")
def test_requests_are_scored_as_if_alone(device: torch.device) -> None:
    """Bits do not depend on the neighbours, which move the borders of programs."""
    (given,) = inputs(named("bf16: long beside short"), device)
    alone = replace(
        given,
        q=given.q[:1],
        page_table=given.page_table[:1],
        visible=given.visible[:1],
    )
    assert same_bits(scored(given)[:1], scored(alone))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_format
@pytest.mark.usefixtures("kernel")
def test_a_captured_graph_follows_the_lengths(key_format: KeyFormat) -> None:
    device = torch.device("cuda")
    (given,) = inputs(long_case(3, 4, 30_000, key_format), device)
    out = scored(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scored(given, out=out, settled=True)
    for lengths in ([7_000, 1, 0], [512, 600, 7_499], [0, 0, 0]):
        given.visible.copy_(torch.tensor(lengths).repeat_interleave(4).view(3, 4))
        out.fill_(torch.nan)
        graph.replay()
        assert_close(out, expected(given), TOLERANCE[key_format])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("kernel")
def test_what_the_kernel_before_writes_is_seen(device: torch.device) -> None:
    (given,) = inputs(long_case(16, 4, 32_768, KeyFormat.BF16), device)
    lengths = given.visible.clone()
    wanted, out = expected(given), torch.empty_like(scored(given))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            given.visible.zero_()
            scored(given)
            given.visible.copy_(lengths)
            scored(given, out=out)
    out.fill_(torch.nan)
    graph.replay()
    assert_close(out, wanted, 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("kernel")
def test_output_beyond_2_31(device: torch.device) -> None:
    (given,) = inputs(named("bf16: verify of four"), device)
    columns = given.page_table.shape[1] * given.keys.shape[1]
    out = torch.empty((2, 4, 2**29), device=device)[..., :columns].fill_(torch.nan)
    assert_close(scored(given, out=out), expected(given), 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_format
@pytest.mark.usefixtures("kernel")
def test_long_requests(key_format: KeyFormat, device: torch.device) -> None:
    for requests, tokens in ((1, 262_144), (5, 40_003), (64, 8_192), (128, 2_100)):
        (given,) = inputs(long_case(requests, 4, tokens, key_format), device)
        assert_close(scored(given), expected(given), TOLERANCE[key_format])


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unscaled keys under bf16 queries": (
        {"keys": torch.float8_e4m3fn},
        r"q, keys and key_scale: found dtypes bfloat16 × float8_e4m3fn; wanted one of",
    ),
    "lengths of tokens rather than rows": (
        {"visible": torch.zeros((2, 3), dtype=torch.int32)},
        r"visible: found int32 \[2, 3\] on cpu; wanted int32 \[2, 4\] on cpu",
    ),
    "wide page ids": (
        {"page_table": torch.zeros((2, 9), dtype=torch.int64)},
        r"page_table: found int64 \[2, 9\]",
    ),
    "strided lengths": (
        {"visible": torch.zeros((4, 2), dtype=torch.int32).T},
        r"page_table and visible: found strides",
    ),
    "scales with holes": (
        {
            "keys": torch.float8_e4m3fn,
            "key_scale": torch.zeros((9, 16, 2))[..., 0],
        },
        r"keys and key_scale: found strides .* wanted contiguous pages",
    ),
    "keys between words": (
        {
            "keys": torch.zeros(9 * 16 * 64 + 1, dtype=torch.uint8)[1:].view(9, 16, 64),
            "key_scale": torch.zeros((9, 16, 4), dtype=torch.uint8),
        },
        r"keys and key_scale: found .* past a word; wanted contiguous pages",
    ),
    "five rows": (
        {"q": torch.zeros((2, 5, 4, 128), dtype=torch.bfloat16)},
        r"q: found 5 rows per request",
    ),
    "a page size of 12": (
        {"keys": torch.zeros((9, 12, 128), dtype=torch.bfloat16)},
        r"keys: found page size 12",
    ),
    "an output of another batch": (
        {"out": torch.zeros((3, 4, 99))},
        r"out: found float32 \[3, 4, 99\]",
    ),
    "too few maxima": (
        {"maxima": torch.zeros((2, 4, 8))},
        r"out and maxima: .* at least 9 groups",
    ),
    "an output with holes": (
        {"out": torch.zeros((2, 4, 144, 2))[..., 0]},
        r"out and maxima: .* last strides \[2\]",
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refuses(why: str) -> None:
    changed, message = REFUSALS[why]
    arguments: dict[str, Any] = {
        "q": torch.zeros((2, 4, 4, 128), dtype=torch.bfloat16),
        "keys": torch.zeros((9, 16, 128), dtype=torch.bfloat16),
        "page_table": torch.zeros((2, 9), dtype=torch.int32),
        "visible": torch.zeros((2, 4), dtype=torch.int32),
    }
    for name, value in changed.items():
        same = isinstance(value, torch.dtype)
        arguments[name] = arguments[name].to(value) if same else value
    with pytest.raises(ValueError, match=message):
        score(**arguments, scale=SCALE)
