"""What the order of pages costs the scorer, beside ways to only move the bytes.

    python -m benchmarks.kernels.page_order --out benchmarks/results/NAME

bf16 keys, four rows. The same pool is scored through a page table in random order and
through one in the order of memory. Read alone, the same random pages of 4 KiB only
arrive in shared memory, as the Hopper scorer has them brought: the least time that it
could take. `index_select` gathers them, and the copy moves as many bytes as the scorer.
Nothing is printed unless the scorer's test is green on this GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.score import (
    COLUMNS,
    DEVICE,
    KEY_BYTES,
    K,
    copy_calls,
    moved_bytes,
    our_calls,
)
from benchmarks.kernels.timing import (
    Call,
    copy_rate,
    header,
    input_sets,
    interleaved,
    publish,
    require_green,
)
from sglang_qsa_kernels.score import hopper
from sglang_qsa_kernels.score.cases import PAGE_SIZE, RATIO, Inputs, inputs, long_case
from sglang_qsa_kernels.score.tiles import HopperTile, KeyFormat, tile_for

ROWS = 4
SHAPES = [(16, 32 * K), (4, 128 * K), (16, 128 * K), (64, 32 * K)]
RANDOM, ORDERED, READ, GATHER, COPY = (
    "pages in random order",
    "pages in order",
    "read alone",
    "index_select",
    "copy",
)


def in_order(sets: list[Inputs], pages: int) -> list[Inputs]:
    """The same inputs, each request's pages one after the other in memory."""
    ordered = []
    for at, given in enumerate(sets):
        table = given.page_table.clone()
        requests = len(table)
        first = at * requests * pages
        ids = torch.arange(first, first + requests * pages, device=DEVICE)
        table[:, :pages] = ids.view(requests, pages).int()
        ordered.append(replace(given, page_table=table))
    return ordered


def read_calls(sets: list[Inputs]) -> list[Call]:
    """The random pages, read and not used; none where `score` does not read so."""
    given = sets[0]
    requests = len(given.visible)
    takes = hopper.takes(given.keys, requests)
    tile = tile_for(KeyFormat.BF16, DEVICE, requests=requests, hopper=takes)
    if not isinstance(tile, HopperTile):
        return []
    from benchmarks.kernels.page_read import read_pages

    return [partial(read_pages, each, tile) for each in sets]


def gather_calls(sets: list[Inputs], pages: int) -> list[Call]:
    """PyTorch's gather of the random pages: read once, written once."""

    def call(given: Inputs) -> Call:
        ids = given.page_table[:, :pages].flatten().long()
        pool = given.keys.flatten(1).view(torch.float32)
        out = torch.empty((len(ids), pool.shape[1]), device=DEVICE)
        return lambda: torch.index_select(pool, 0, ids, out=out)

    return [call(given) for given in sets]


def measure(requests: int, tokens: int) -> dict[str, Any]:
    pages = -(-tokens // (RATIO * PAGE_SIZE))
    case = long_case(requests, ROWS, tokens, KeyFormat.BF16)
    case = replace(case, spare_pages=COLUMNS // PAGE_SIZE - pages)
    key_bytes = requests * tokens // RATIO * KEY_BYTES[KeyFormat.BF16]
    sets = inputs(case, DEVICE, sets=input_sets(key_bytes))
    moved = moved_bytes(requests, tokens, ROWS, KeyFormat.BF16)
    calls = {
        RANDOM: our_calls(sets),
        ORDERED: our_calls(in_order(sets, pages)),
        READ: read_calls(sets),
        GATHER: gather_calls(sets, pages),
        COPY: copy_calls(moved),
    }
    calls = {name: its_calls for name, its_calls in calls.items() if its_calls}
    times = interleaved(calls, rounds=25)
    return {
        "requests": requests,
        "tokens": tokens,
        "bytes": dict.fromkeys(calls, moved) | {READ: key_bytes, GATHER: 2 * key_bytes},
        "times": {name: asdict(time) for name, time in times.items()},
    }


def markdown(result: dict[str, Any]) -> str:
    machine, copy = result["machine"], result["copy_gb_per_s"]
    names = [
        name
        for name in (RANDOM, ORDERED, READ, GATHER, COPY)
        if all(name in shape["times"] for shape in result["shapes"])
    ]
    lines = [
        "# Scorer and the order of pages",
        "",
        f"{machine['gpu']}, torch {machine['versions']['torch']}, triton "
        f"{machine['versions']['triton']}, commit {machine['commit'][:12]}. "
        f"{machine['method']}. Test: {result['test']}.",
        "",
        "µs per call, and bytes moved over time as a share of the "
        f"{copy:.0f} GB/s of a large copy in this run. Read alone: the same random "
        "pages, into shared memory. index_select reads and writes them.",
        "",
        "| requests × context | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for shape in result["shapes"]:
        cells = []
        for name in names:
            us = shape["times"][name]["median_us"]
            cells.append(f"{us:.1f}, {shape['bytes'][name] / us / 10 / copy:.0f} %")
        lines.append(
            f"| {shape['requests']} × {shape['tokens'] // K}k | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="result files, without suffix")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "test": require_green("tests/kernels/test_score.py"),
        "machine": header(),
        "copy_gb_per_s": copy_rate(),
        "shapes": [measure(*shape) for shape in SHAPES],
    }
    publish(arguments.out, result, markdown(result))


if __name__ == "__main__":
    main()
