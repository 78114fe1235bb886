"""Measure `topk_merge` against merges that leave the order to chance.

python -m benchmarks.kernels.topk_merge --out benchmarks/results
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import timing
from benchmarks.kernels.topk import Select, upstream
from sglang_qsa_kernels.topk import SELECTED_BLOCKS
from sglang_qsa_kernels.topk_merge import topk_merge
from sglang_qsa_kernels.topk_merge.cases import MEASURED, Case, Inputs, inputs
from sglang_qsa_kernels.topk_merge.reference import topk_merge_reference

TEST = "tests/kernels/test_topk_merge.py"
NAME = "kernels_topk_merge_h200_202611"
DEVICE = torch.device("cuda")


def unordered(select: Select, given: Inputs) -> torch.Tensor:
    """The gathered lists side by side, one selection, and its blocks: no local ids."""
    rows = given.scores.shape[1]
    scores = given.scores.transpose(0, 1).reshape(rows, -1)
    blocks = given.blocks.transpose(0, 1).reshape(rows, -1)
    lengths = torch.full(
        (rows,), scores.shape[1], dtype=torch.int32, device=scores.device
    )
    return blocks.gather(1, select(scores, lengths).long())


def torch_topk(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.topk(scores, SELECTED_BLOCKS).indices


def measure(case: Case) -> dict[str, Any]:
    """Times of one shape, after a check of what is timed."""
    given = inputs(case, DEVICE)
    options = {"rank": 0, "run_blocks": case.run_blocks}
    ours = partial(topk_merge, given.scores, given.blocks, **options)
    wanted = topk_merge_reference(given.scores, given.blocks, **options)
    timing.require(all(map(torch.equal, ours(), wanted)), case.name)
    calls: dict[str, list[timing.Call]] = {"ours": [ours] * 8}
    select = upstream()
    if select is not None:
        calls["unordered, upstream"] = [partial(unordered, select, given)] * 8
    calls["unordered, torch"] = [partial(unordered, torch_topk, given)] * 8
    times = timing.interleaved(calls)
    return {
        "case": case.name,
        "times": {name: asdict(time) for name, time in times.items()},
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    head, times = result["header"], result["times"]
    names = list(times[0]["times"])
    lines = [
        "# Merge of the selections of context-parallel ranks",
        "",
        f"{head['gpu']}, torch {head['versions']['torch']}, triton "
        f"{head['versions']['triton']}, sglang {head['versions']['sglang']}, commit "
        f"{head['commit'][:12]}. {head['method']}; the lists come from a collective "
        f"and are warm. Test: {result['test']}.",
        "",
        "µs per call, median. Ours includes local blocks and counts; the unordered "
        "merges do not, and leave ties and order to the order of ranks.",
        "",
        "| ranks x rows | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += [
        f"| {row['case']} | "
        + " | ".join(f"{row['times'][name]['median_us']:.1f}" for name in names)
        + " |"
        for row in times
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    test = timing.require_green(TEST)
    times = [measure(case) for case in MEASURED]
    result = {"header": timing.header(), "test": test, "times": times}
    timing.publish(out / NAME, result, table(result))


if __name__ == "__main__":
    main()
