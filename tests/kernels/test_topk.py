"""`topk` equals a stable sort, in every call, and reads what it may read only."""

from __future__ import annotations

import pytest
import torch

from sglang_qsa_kernels.topk import MAX_WIDTH, topk
from sglang_qsa_kernels.topk.cases import CASES, Case, inputs
from sglang_qsa_kernels.topk.reference import maxima_reference, topk_reference

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_a_stable_sort(case: Case) -> None:
    if case.gpu_only and not GPU:
        pytest.skip("needs a CUDA device")
    given = inputs(case, DEVICE)
    found = topk(given.scores, given.lengths, given.row_starts)
    wanted = topk_reference(given.scores, given.lengths, given.row_starts)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["two levels, odd", "ragged, three levels"])
def test_takes_group_maxima_from_the_scorer(name: str) -> None:
    given = inputs(named(name), DEVICE)
    maxima = maxima_reference(given.scores, given.lengths, given.row_starts)
    found = topk(given.scores, given.lengths, given.row_starts, maxima=maxima)
    wanted = topk_reference(given.scores, given.lengths, given.row_starts)
    assert torch.equal(found, wanted)


def test_group_maxima_replace_the_pass_over_the_scores() -> None:
    given = inputs(named("two levels, odd"), DEVICE)
    hidden = torch.zeros_like(maxima_reference(given.scores, given.lengths))
    hidden[0, 600:] = 1.0
    first = topk(given.scores, given.lengths, maxima=hidden)[0]
    assert int(first.min()) >= 600 * 16


@pytest.mark.parametrize("name", ["two levels, odd", "five values", "one tile"])
def test_every_call_gives_the_same(name: str) -> None:
    given = inputs(named(name), DEVICE)
    first = topk(given.scores, given.lengths, given.row_starts)
    for _ in range(1_000 if GPU else 2):
        again = topk(given.scores, given.lengths, given.row_starts)
        assert torch.equal(again, first)


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_captured_graph_follows_the_lengths() -> None:
    given = inputs(named("two levels, odd"), DEVICE)
    scores = given.scores.nan_to_num(0.5)
    topk(scores, given.lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = topk(scores, given.lengths)
    for lengths in ((20_011, 600, 0), (3, 8_193, 20_000)):
        given.lengths.copy_(torch.tensor(lengths))
        found.fill_(-7)
        graph.replay()
        assert torch.equal(found, topk_reference(scores, given.lengths))


SCORES = torch.zeros(2, 600)
LENGTHS = torch.full((2,), 600, dtype=torch.int32)
MAXIMA = torch.zeros(2, 38)


@pytest.mark.parametrize(
    ("scores", "lengths", "starts", "maxima", "message"),
    [
        (SCORES.half(), LENGTHS, None, None, "scores: found float16.*wanted float32"),
        (SCORES[0], LENGTHS, None, None, r"scores: found float32 \[600\]"),
        (SCORES.T, LENGTHS.repeat(300), None, None, "scores.*unit stride"),
        (torch.empty(1, MAX_WIDTH + 1, device="meta"), LENGTHS, None, None, "2097152"),
        (SCORES, LENGTHS.long(), None, None, "lengths: found int64.*wanted int32"),
        (SCORES, LENGTHS[:1], None, None, r"lengths: found int32 \[1\]"),
        (SCORES, LENGTHS.to("meta"), None, None, "lengths.*on meta.*on cpu"),
        (SCORES, LENGTHS.repeat(2)[::2], None, None, "lengths.*unit stride"),
        (SCORES, LENGTHS, LENGTHS.float(), None, "row_starts: found float32"),
        (SCORES, LENGTHS, None, MAXIMA[:, 1:], "maxima: found 37 groups.*at least 38"),
        (SCORES, LENGTHS, None, MAXIMA[:1], r"maxima: found float32 \[1, 38\]"),
        (SCORES, LENGTHS, None, MAXIMA.double(), "maxima: found float64"),
        (SCORES, LENGTHS, None, MAXIMA.T.contiguous().T, "maxima.*unit stride"),
    ],
)
def test_refuses(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor | None,
    maxima: torch.Tensor | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        topk(scores, lengths, starts, maxima=maxima)
    assert "\n" not in str(refused.value)
