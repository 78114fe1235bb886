"""Scores and their selection: our pair of kernels beside upstream's two.

    python -m benchmarks.kernels.score_topk --out benchmarks/results/NAME

A decode or verify step's whole choice of blocks, bf16 keys, page tables and score rows
as wide as SGLang's for 256k tokens. Nothing is printed unless both ops' tests are green
on this GPU and our selection at each measured shape is that of a stable sort.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.score import (
    COLUMNS,
    DEVICE,
    KEY_BYTES,
    SHAPES,
    K,
    upstream_calls,
)
from benchmarks.kernels.timing import (
    Call,
    header,
    input_sets,
    interleaved,
    median,
    publish,
    ratio,
    require,
    require_green,
    version_of,
)
from benchmarks.kernels.topk import Select, flashinfer, upstream
from sglang_qsa_kernels.score import MAXIMA_GROUP, score
from sglang_qsa_kernels.score.cases import (
    PAGE_SIZE,
    RATIO,
    SCALE,
    Inputs,
    inputs,
    long_case,
)
from sglang_qsa_kernels.score.tiles import KeyFormat
from sglang_qsa_kernels.topk import SELECTED_BLOCKS, topk
from sglang_qsa_kernels.topk.reference import topk_reference

TESTS = ("tests/kernels/test_score.py", "tests/kernels/test_topk.py")
UPSTREAM, INVARIANT = "upstream", "upstream, flashinfer"


def ours(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """[requests x rows, columns] fp32 scores and [requests x rows, 512] blocks, as
    `hooks.qsa_ops` calls the ops."""
    requests, rows = given.visible.shape
    scores, maxima = (
        torch.empty((requests, rows, width), device=DEVICE)
        for width in (COLUMNS, COLUMNS // MAXIMA_GROUP)
    )
    score(
        given.q,
        given.keys,
        given.page_table,
        given.visible,
        scale=SCALE,
        out=scores,
        maxima=maxima,
        min_visible=SELECTED_BLOCKS,
        settled=True,
    )
    scores, maxima = scores.flatten(0, 1), maxima.flatten(0, 1)
    return scores, topk(scores, given.visible.flatten(), maxima=maxima)


def our_calls(sets: list[Inputs]) -> list[Call]:
    def call(given: Inputs) -> Call:
        return lambda: ours(given)

    return [call(given) for given in sets]


def their_calls(sets: list[Inputs], scorers: list[Call], select: Select) -> list[Call]:
    """SGLang's scorer, then a selection."""

    def call(scorer: Call, lengths: torch.Tensor) -> Call:
        def both() -> torch.Tensor:
            scores = scorer()
            assert isinstance(scores, torch.Tensor)
            return select(scores, lengths)

        return both

    return [
        call(scorer, given.visible.flatten())
        for scorer, given in zip(scorers, sets, strict=True)
    ]


def measure(
    requests: int, tokens: int, rows: int, selectors: dict[str, Select]
) -> dict[str, Any]:
    """All pairs at one shape, after a check of ours."""
    case = long_case(requests, rows, tokens, KeyFormat.BF16)
    pages = -(-tokens // (RATIO * PAGE_SIZE))
    case = replace(case, spare_pages=COLUMNS // PAGE_SIZE - pages)
    key_bytes = requests * tokens // RATIO * KEY_BYTES[KeyFormat.BF16]
    sets = inputs(case, DEVICE, sets=input_sets(key_bytes, available=64))
    scores, blocks = ours(sets[0])
    lengths = sets[0].visible.flatten()
    require(torch.equal(blocks, topk_reference(scores, lengths)), case.name)
    scorers = upstream_calls(sets)
    calls = {"ours": our_calls(sets)}
    for name, select in selectors.items():
        calls[name] = their_calls(sets, scorers, select)
    times = interleaved(calls)
    return {
        "requests": requests,
        "tokens": tokens,
        "rows": rows,
        "times": {name: asdict(time) for name, time in times.items()},
    }


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = machine["versions"]
    lines = [
        "# Scores and selection together",
        "",
        f"{machine['gpu']}, torch {versions['torch']}, triton {versions['triton']}, "
        f"sglang {versions['sglang']}, tilelang {result['tilelang']}, flashinfer "
        f"{result['flashinfer']}, commit {machine['commit'][:12]}. "
        f"{machine['method']}. Tests: {'; '.join(result['tests'])}.",
        "",
        "µs per layer call, bf16 keys, score rows of 65,536 columns. Ours: `score` "
        "with maxima, then `topk`, exact. Upstream: SGLang's TileLang scorer, then "
        "its `fast_topk`; in batch-invariant mode FlashInfer's deterministic "
        "`top_k_ragged_transform`.",
        "",
        "| rows | requests × context | ours | upstream | × | batch-invariant | × |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for shape in result["shapes"]:
        times = shape["times"]
        cells = [f"{shape['rows']}", f"{shape['requests']} × {shape['tokens'] // K}k"]
        cells += [median(times, "ours")]
        for name in (UPSTREAM, INVARIANT):
            cells += [median(times, name), ratio(times, name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="result files, without suffix")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 1])
    arguments = parser.parse_args()
    select = upstream()
    if select is None:
        parser.error("sglang is not installed: there is nothing to compare with")
    selectors = {UPSTREAM: select}
    invariant = flashinfer()
    if invariant is not None:
        selectors[INVARIANT] = invariant
    result: dict[str, Any] = {
        "tests": [require_green(test) for test in TESTS],
        "machine": header(),
        "tilelang": version_of("tilelang"),
        "flashinfer": version_of("flashinfer-python"),
        "shapes": [
            measure(requests, tokens, rows, selectors)
            for rows in arguments.rows
            for requests, tokens in SHAPES
        ],
    }
    publish(arguments.out, result, markdown(result))


if __name__ == "__main__":
    main()
