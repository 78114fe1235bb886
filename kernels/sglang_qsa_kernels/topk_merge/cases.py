"""The shapes and scores that test and benchmark of `topk_merge` share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_qsa_kernels.topk.cases import BUDGET, fill


@dataclass(frozen=True, slots=True)
class Case:
    """One merge of a selection over `width` blocks, dealt out in runs."""

    name: str
    ranks: int
    rows: int
    width: int
    scores: str
    run_blocks: int = 4
    gpu_only: bool = False


SMALL = (
    *(
        Case(f"{ranks} ranks, {width}, {scores}", ranks, 2, width, scores)
        for ranks, width, scores in (
            (1, 2_000, "relu"),
            (2, 6_001, "relu"),
            (2, 3_000, "five"),
            (2, 5_000, "zero"),
            (2, 4_000, "sparse"),
            (2, 511, "relu"),
            (2, 0, "relu"),
            (3, 5_000, "five"),
            (4, 9_000, "relu"),
            (4, 2_500, "five"),
            (4, 700, "signed"),
            (8, 12_001, "close"),
        )
    ),
    Case("runs of a page", 2, 1, 3_000, "five", run_blocks=16),
    Case("no row", 2, 0, 3_000, "relu"),
)
MEASURED = tuple(
    Case(f"{ranks} ranks x {rows} rows", ranks, rows, 65_536, "relu", gpu_only=True)
    for ranks in (2, 4, 8)
    for rows in (1, 4, 16, 64)
)
CASES = SMALL + MEASURED
"""What the test runs; the benchmark measures `MEASURED`."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Gathered lists, and the scores of all blocks that they were selected from."""

    scores: torch.Tensor
    blocks: torch.Tensor
    whole: torch.Tensor


def inputs(case: Case, device: torch.device, *, seed: int = 0) -> Inputs:
    """The best of each rank's own blocks, every list in an order of its own.

    Padding has an infinite score: taken for a block, it would be chosen.
    """
    generator = torch.Generator(device).manual_seed(seed)
    whole = fill(case.scores, (case.rows, case.width), generator)
    shape = (case.ranks, case.rows, BUDGET)
    scores = torch.full(shape, torch.inf, device=device)
    blocks = torch.full(shape, -1, dtype=torch.int32, device=device)
    owner = torch.arange(case.width, device=device) // case.run_blocks % case.ranks
    for rank in range(case.ranks):
        own = (owner == rank).nonzero()[:, 0]
        for row in range(case.rows):
            best = whole[row, own].sort(descending=True, stable=True).indices[:BUDGET]
            order = torch.randperm(len(best), generator=generator, device=device)
            best = own[best[order]]
            scores[rank, row, : len(best)] = whole[row, best]
            blocks[rank, row, : len(best)] = best.int()
    return Inputs(scores, blocks, whole)
