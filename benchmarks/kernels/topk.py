"""Measure `topk` against upstream, FlashInfer and torch, and what wrong blocks cost.

python -m benchmarks.kernels.topk --out benchmarks/results
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import timing
from benchmarks.kernels.wrong_blocks import wrong_blocks
from sglang_qsa_kernels.topk import SELECTED_BLOCKS, topk
from sglang_qsa_kernels.topk.cases import DECODE, PREFILL, Case, Inputs, inputs
from sglang_qsa_kernels.topk.reference import maxima_reference, topk_reference

TEST = "tests/kernels/test_topk.py"
NAME = "kernels_topk_h200_202611"
DEVICE = torch.device("cuda")
STATIC_WIDTH = 65_536
"""Columns of a captured graph at 262,144 tokens of context, however short the rows."""
STATIC_LENGTHS = (2_048, 8_192, 32_768)

Select = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def upstream() -> Select | None:
    """SGLang's own kernel, or None where it is not installed."""
    try:
        from sglang.kernels.ops.attention.fast_topk import fast_topk
    except ImportError:
        return None

    def select(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        starts = torch.zeros_like(lengths)
        found: torch.Tensor = fast_topk(
            scores, lengths, topk=SELECTED_BLOCKS, row_starts=starts
        )
        return found

    return select


def flashinfer() -> Select | None:
    """SGLang's choice in batch-invariant mode, or None where it is not installed."""
    try:
        library = importlib.import_module("flashinfer")
    except ImportError:
        return None

    def select(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        starts = torch.zeros_like(lengths)
        found: torch.Tensor = library.top_k_ragged_transform(
            scores,
            starts,
            lengths,
            SELECTED_BLOCKS,
            deterministic=True,
            tie_break=library.TopKTieBreak.SMALL,
            dsa_graph_safe=True,
            row_starts=starts,
        )
        return found

    return select


def from_maxima(given: Inputs, maxima: torch.Tensor) -> torch.Tensor:
    return topk(given.scores, given.lengths, maxima=maxima)


def contenders(sets: Sequence[Inputs]) -> dict[str, list[timing.Call]]:
    """Every selector that runs here, one call per input set."""
    calls: dict[str, list[timing.Call]] = {}
    selectors = {"ours": topk, "upstream": upstream(), "flashinfer": flashinfer()}
    for name, select in selectors.items():
        if select is not None:
            calls[name] = [partial(select, s.scores, s.lengths) for s in sets]
    maxima = [maxima_reference(s.scores, s.lengths) for s in sets]
    calls["ours, maxima from the scorer"] = [
        partial(from_maxima, *pair) for pair in zip(sets, maxima, strict=True)
    ]
    calls["torch.topk"] = [partial(torch.topk, s.scores, SELECTED_BLOCKS) for s in sets]
    return calls


def measure(case: Case) -> dict[str, Any]:
    """Times of one shape, after a check of what is timed."""
    count = timing.input_sets(case.rows * case.width * 4, available=16)
    sets = [inputs(case, DEVICE, seed=seed) for seed in range(count)]
    wanted = topk_reference(sets[0].scores, sets[0].lengths)
    timing.require(
        torch.equal(topk(sets[0].scores, sets[0].lengths), wanted), case.name
    )
    times = timing.interleaved(contenders(sets))
    return {
        "case": case.name,
        "bytes": case.rows * case.width * 4,
        "times": {name: asdict(time) for name, time in times.items()},
    }


def shapes() -> list[Case]:
    static = [
        Case(
            f"4 x {length} of {STATIC_WIDTH} columns",
            4,
            STATIC_WIDTH,
            "relu",
            (length,),
        )
        for length in STATIC_LENGTHS
    ]
    return [*DECODE, *static, *PREFILL]


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    head, times, wrong = result["header"], result["times"], result["wrong_blocks"]
    names = list(times[0]["times"])
    lines = [
        "# Block selection: 512 of n",
        "",
        f"{head['gpu']}, torch {head['versions']['torch']}, triton "
        f"{head['versions']['triton']}, sglang {head['versions']['sglang']}, commit "
        f"{head['commit'][:12]}. {head['method']}. Test: {result['test']}.",
        "",
        "µs per call, median.",
        "",
        "| rows x blocks | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += [
        f"| {row['case']} | "
        + " | ".join(f"{row['times'][name]['median_us']:.1f}" for name in names)
        + " |"
        for row in times
    ]
    lines += [
        "",
        "Share of the 512 picks that are not in the true 512, and what they do to "
        "attention (relative error against full fp64 attention; the true 512 blocks "
        "beside it). Keys share a component of the given size; queries follow it; "
        "K of a token is its block's index key plus noise of 0.3 σ; V is normal.",
        "",
        "| blocks | scores | ours wrong | upstream wrong | sets in 200 calls, ours | "
        "upstream | attention error, true blocks | ours | upstream |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        "| {blocks:,} | {scores} | {ours_wrong:.1%} | {upstream_wrong} | {ours_sets} | "
        "{upstream_sets} | {true_error} | {ours_error} | {upstream_error} |".format(
            **row
        )
        for row in wrong
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    test = timing.require_green(TEST)
    result = {
        "header": timing.header(),
        "test": test,
        "copy_gb_per_s": timing.copy_rate(),
        "times": [measure(case) for case in shapes()],
        "wrong_blocks": wrong_blocks(topk, upstream(), DEVICE),
    }
    timing.publish(out / NAME, result, table(result))


if __name__ == "__main__":
    main()
