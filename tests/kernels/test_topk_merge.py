"""`topk_merge` equals one selection over the blocks of all ranks."""

from __future__ import annotations

import pytest
import torch

from sglang_qsa_kernels.topk.reference import topk_reference
from sglang_qsa_kernels.topk_merge import topk_merge
from sglang_qsa_kernels.topk_merge.cases import CASES, Case, inputs
from sglang_qsa_kernels.topk_merge.reference import topk_merge_reference

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_global_selection(case: Case) -> None:
    if case.gpu_only and not GPU:
        pytest.skip("needs a CUDA device")
    given = inputs(case, DEVICE)
    lengths = torch.full((case.rows,), case.width, dtype=torch.int32, device=DEVICE)
    whole = topk_reference(given.whole, lengths)
    for rank in {0, case.ranks - 1}:
        options = {"rank": rank, "run_blocks": case.run_blocks}
        merged = topk_merge(given.scores, given.blocks, **options)
        wanted = topk_merge_reference(given.scores, given.blocks, **options)
        assert torch.equal(merged.blocks, whole)
        for found, expected in zip(merged, wanted, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "name", ["4 ranks, 9000, relu", "4 ranks, 2500, five", "4 ranks, 700, signed"]
)
def test_the_order_of_ranks_does_not_matter(name: str) -> None:
    given = inputs(named(name), DEVICE)
    first = topk_merge(given.scores, given.blocks, rank=1, run_blocks=4)
    for order in ([3, 2, 1, 0], [2, 0, 3, 1]):
        again = topk_merge(
            given.scores[order], given.blocks[order], rank=1, run_blocks=4
        )
        for found, expected in zip(again, first, strict=True):
            assert torch.equal(found, expected)


def test_local_blocks_of_all_ranks_make_the_selection() -> None:
    case = named("4 ranks, 2500, five")
    given = inputs(case, DEVICE)
    parts = [
        topk_merge(given.scores, given.blocks, rank=rank, run_blocks=4)
        for rank in range(4)
    ]
    for row in range(case.rows):
        found = []
        for rank, part in enumerate(parts):
            local = part.local_blocks[row, : int(part.local_counts[row])]
            found.append((local // 4 * 4 + rank) * 4 + local % 4)
        assert torch.equal(torch.cat(found).sort().values, parts[0].blocks[row])


def test_every_call_gives_the_same() -> None:
    given = inputs(named("4 ranks, 2500, five"), DEVICE)
    first = topk_merge(given.scores, given.blocks, rank=0, run_blocks=4)
    for _ in range(1_000 if GPU else 2):
        again = topk_merge(given.scores, given.blocks, rank=0, run_blocks=4)
        assert all(map(torch.equal, again, first))


SCORES = torch.zeros(2, 3, 512)
BLOCKS = torch.zeros(2, 3, 512, dtype=torch.int32)


@pytest.mark.parametrize(
    ("scores", "blocks", "rank", "run_blocks", "message"),
    [
        (SCORES[0], BLOCKS, 0, 4, r"scores.*\[any, any, 512\]"),
        (SCORES[..., :500], BLOCKS, 0, 4, r"scores.*\[any, any, 512\]"),
        (SCORES.repeat(5, 1, 1), BLOCKS.repeat(5, 1, 1), 0, 4, "10 ranks.*1 to 8"),
        (SCORES, BLOCKS[:, 1:], 0, 4, r"blocks.*\[2, 3, 512\]"),
        (SCORES, BLOCKS.to("meta"), 0, 4, "blocks.*on cpu"),
        (SCORES.double(), BLOCKS, 0, 4, "scores: found float64.*float32"),
        (SCORES, BLOCKS.long(), 0, 4, "blocks: found int64.*int32"),
        (SCORES, BLOCKS.mT.contiguous().mT, 0, 4, "blocks.*contiguous"),
        (SCORES, BLOCKS, 2, 4, "rank: found 2.*0 to 1"),
        (SCORES, BLOCKS, -1, 4, "rank: found -1"),
        (SCORES, BLOCKS, 0, 0, "run_blocks: found 0.*at least 1"),
    ],
)
def test_refuses(
    scores: torch.Tensor,
    blocks: torch.Tensor,
    rank: int,
    run_blocks: int,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        topk_merge(scores, blocks, rank=rank, run_blocks=run_blocks)
    assert "\n" not in str(refused.value)
