"""Measure `topk` against upstream, FlashInfer and torch, and what wrong blocks cost.

python -m benchmarks.kernels.topk --out benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import timing
from benchmarks.kernels.paged_attention import library
from benchmarks.kernels.wrong_blocks import wrong_blocks, wrong_table
from sglang_qsa_kernels.topk import SELECTED_BLOCKS, topk
from sglang_qsa_kernels.topk.cases import DECODE, PREFILL, Case, Inputs, inputs
from sglang_qsa_kernels.topk.reference import maxima_reference, topk_reference

TEST = "tests/kernels/test_topk.py"
NAME = "kernels_topk_h200_202611"
DEVICE = torch.device("cuda")
STATIC_WIDTH = 65_536
"""Columns of a captured graph at 262,144 tokens of context, however short the rows."""
STATIC_LENGTHS = (2_048, 8_192, 32_768)
FROM_MAXIMA = "ours, maxima from the scorer"
COLUMNS = ("ours", "upstream", "flashinfer", FROM_MAXIMA, "torch.topk")

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
    """SGLang's choice in batch-invariant mode, or None where it is not installed.

    Source: `qsa_fast_topk` of sglang/srt/layers/attention/qsa/kernel.py@0.5.23; its
    offsets are made before.
    """
    found = library()
    if found is None:
        return None

    def select(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        starts = _zeros(len(lengths), lengths.device)
        blocks: torch.Tensor = found.top_k_ragged_transform(
            scores,
            starts,
            lengths,
            SELECTED_BLOCKS,
            deterministic=True,
            tie_break=found.TopKTieBreak.SMALL,
            dsa_graph_safe=True,
            row_starts=starts,
        )
        return blocks

    return select


@cache
def _zeros(rows: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int32, device=device)


def selectors() -> dict[str, Select | None]:
    """Ours and those of others, None where one is not installed."""
    return {"ours": topk, "upstream": upstream(), "flashinfer": flashinfer()}


def from_maxima(given: Inputs, maxima: torch.Tensor) -> torch.Tensor:
    return topk(given.scores, given.lengths, maxima=maxima)


def contenders(sets: Sequence[Inputs]) -> dict[str, list[timing.Call]]:
    """Every selector that runs here, one call per input set."""
    calls: dict[str, list[timing.Call]] = {}
    for name, select in selectors().items():
        if select is not None:
            calls[name] = [partial(select, s.scores, s.lengths) for s in sets]
    maxima = [maxima_reference(s.scores, s.lengths) for s in sets]
    calls[FROM_MAXIMA] = [
        partial(from_maxima, *pair) for pair in zip(sets, maxima, strict=True)
    ]
    calls["torch.topk"] = [partial(torch.topk, s.scores, SELECTED_BLOCKS) for s in sets]
    return calls


def differing(found: torch.Tensor, wanted: torch.Tensor, width: int) -> float:
    """Share of `wanted` that `found` lacks, whatever its order."""
    # A selector may return fewer: -1 marks the last, surplus column.
    shape = (len(found), width + 1)
    seen = torch.zeros(shape, dtype=torch.bool, device=found.device)
    seen.scatter_(1, found.long() % shape[1], True)
    return float((~seen.gather(1, wanted.long())).double().mean())


def measure(case: Case) -> dict[str, Any]:
    """Times of one shape, after a check of what is timed. Every row has 512 blocks."""
    count = timing.input_sets(case.rows * case.width * 4, available=16)
    sets = [inputs(case, DEVICE, seed=seed) for seed in range(count)]
    given = sets[0]
    wanted = topk_reference(given.scores, given.lengths)
    timing.require(torch.equal(topk(given.scores, given.lengths), wanted), case.name)
    times = timing.interleaved(contenders(sets))
    return {
        "case": case.name,
        "bytes": case.rows * case.width * 4,
        "times": {name: asdict(time) for name, time in times.items()},
        "differing": {
            name: differing(select(given.scores, given.lengths), wanted, case.width)
            for name, select in selectors().items()
            if select is not None
        },
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
    head, times = result["header"], result["times"]
    lines = [
        "# Block selection: 512 of n",
        "",
        f"{head['gpu']}, torch {head['versions']['torch']}, triton "
        f"{head['versions']['triton']}, sglang {head['versions']['sglang']}, "
        f"flashinfer {result['flashinfer']}, commit {head['commit'][:12]}. "
        f"{head['method']}. Test: {result['test']}.",
        "",
        "µs per call, median. FlashInfer: `top_k_ragged_transform`, deterministic, "
        "ties to the smaller block, as SGLang calls it in batch-invariant mode.",
        "",
        "| rows x blocks | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for row in times:
        cells = [timing.median(row["times"], name) for name in COLUMNS]
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    worst = {
        name: max(row["differing"][name] for row in times)
        for name in times[0]["differing"]
    }
    lines += [
        "",
        "Picks that are not those of a stable sort, at the worst of these shapes: "
        + ", ".join(f"{name} {share:.1%}" for name, share in worst.items())
        + ".",
        "",
        *wrong_table(result["wrong_blocks"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    test = timing.require_green(TEST)
    result = {
        "header": timing.header(),
        "flashinfer": timing.version_of("flashinfer-python"),
        "test": test,
        "copy_gb_per_s": timing.copy_rate(),
        "times": [measure(case) for case in shapes()],
        "wrong_blocks": wrong_blocks(selectors(), DEVICE),
    }
    timing.publish(out / NAME, result, table(result))


if __name__ == "__main__":
    main()
