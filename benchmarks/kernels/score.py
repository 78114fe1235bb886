"""Scorer: ours in every key format, SGLang's TileLang kernel and PyTorch.

    python -m benchmarks.kernels.score --out benchmarks/results/NAME

Page tables are as wide as the longest context, 256k tokens, as SGLang's are. Nothing
is printed unless the op's test is green on this GPU and each of our outputs at each
measured shape is within its tolerance of fp64.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.timing import (
    Call,
    copy_rate,
    header,
    input_sets,
    interleaved,
    publish,
    require,
    require_green,
    version_of,
)
from sglang_qsa_kernels.score import HEAD_DIM, HEADS, score
from sglang_qsa_kernels.score.cases import (
    NO_PAGE,
    PAGE_SIZE,
    RATIO,
    SCALE,
    TOLERANCE,
    Inputs,
    inputs,
    long_case,
)
from sglang_qsa_kernels.score.reference import score_reference
from sglang_qsa_kernels.score.tiles import KeyFormat, tile_for

DEVICE = torch.device("cuda")
CONTEXT_TOKENS = 262_144
COLUMNS = CONTEXT_TOKENS // RATIO
K = 1024
SHAPES = [
    (1, 8 * K),
    (1, 32 * K),
    (1, 128 * K),
    (1, 256 * K),
    (4, 32 * K),
    (4, 128 * K),
    (8, 256 * K),
    (16, 8 * K),
    (16, 32 * K),
    (16, 128 * K),
    (64, 8 * K),
    (64, 32 * K),
]
"""Requests and tokens of context: the table of the design."""
KEY_BYTES = {
    KeyFormat.BF16: 256,
    KeyFormat.E4M3: 128,
    KeyFormat.E4M3_SCALED: 132,
    KeyFormat.MXFP4: 68,
}
BF16 = KeyFormat.BF16
SAME_BYTES = "copy"
UPSTREAM_TOLERANCE = {KeyFormat.BF16: 1e-3, KeyFormat.E4M3: 1e-2}


def our_calls(sets: list[Inputs]) -> list[Call]:
    def call(given: Inputs) -> Call:
        return lambda: score(
            given.q,
            given.keys,
            given.page_table,
            given.visible,
            scale=SCALE,
            key_scale=given.key_scale,
            settled=True,
        )

    return [call(given) for given in sets]


def upstream_calls(sets: list[Inputs]) -> list[Call]:
    """SGLang's call: one table row per query row, queries padded to eight heads."""
    from sglang.srt.layers.attention.qsa import mqa

    if not mqa.HAS_TILELANG:
        raise SystemExit("tilelang is not installed: without it this is no baseline")

    def call(given: Inputs) -> Call:
        requests, rows = given.visible.shape
        q = given.q.new_zeros((requests * rows, 2 * HEADS, HEAD_DIM))
        q[:, :HEADS] = given.q.flatten(0, 1)
        cache = given.keys.unflatten(2, (1, HEAD_DIM))
        table = given.page_table.repeat_interleave(rows, 0)
        table = torch.where(table == NO_PAGE, 0, table)  # as SGLang pads it
        lengths = given.visible.flatten()
        return lambda: mqa.qsa_mqa_decode(
            q, cache, table, lengths, COLUMNS, min_scored_len=512
        )

    return [call(given) for given in sets]


def torch_calls(sets: list[Inputs]) -> list[Call]:
    """Gather the pages in use, one matrix product per request, ReLU and sum."""

    def call(given: Inputs) -> Call:
        pages = -(-int(given.visible.max()) // PAGE_SIZE)
        table = given.page_table[:, :pages].long()

        def scores() -> torch.Tensor:
            keys = given.keys[table].flatten(1, 2)
            products = given.q.flatten(1, 2) @ keys.transpose(1, 2)
            products = products.unflatten(1, (-1, HEADS)).float()
            sums: torch.Tensor = products.relu_().sum(2).mul_(SCALE)
            return sums

        return scores

    return [call(given) for given in sets]


def copy_calls(copied_bytes: int) -> list[Call]:
    """Device copies that read and write `copied_bytes` in all, each of its own data."""
    sets = input_sets(copied_bytes)
    source = torch.empty((sets, copied_bytes // 8), dtype=torch.int32, device=DEVICE)
    target = torch.empty_like(source)

    def call(at: int) -> Call:
        return lambda: torch.bitwise_not(source[at], out=target[at])

    return [call(at) for at in range(sets)]


def moved_bytes(requests: int, tokens: int, rows: int, key_format: KeyFormat) -> int:
    """Keys read once and scores written."""
    return requests * (tokens // RATIO) * (KEY_BYTES[key_format] + 4 * rows)


def error(found: torch.Tensor, given: Inputs, wanted: torch.Tensor) -> float:
    """Largest error of a row, as 2-norms over what it sees."""
    found = found.view(*given.visible.shape, -1)[..., : wanted.shape[-1]]
    wanted = wanted[..., : found.shape[-1]]
    seen = ~wanted.isnan()
    off = torch.where(seen, found.double() - wanted, 0.0).norm(dim=-1)
    return float((off / wanted.nan_to_num(0).norm(dim=-1)).max())


def measure(
    requests: int, tokens: int, rows: int, *, upstream: bool, rounds: int
) -> dict[str, Any]:
    """All contenders at one shape: errors against fp64, then times."""
    calls: dict[str, list[Call]] = {}
    errors: dict[str, float] = {}
    for key_format in KeyFormat:
        case = long_case(requests, rows, tokens, key_format)
        pages = -(-tokens // (RATIO * PAGE_SIZE))
        case = replace(case, spare_pages=COLUMNS // PAGE_SIZE - pages)
        key_bytes = requests * tokens // RATIO * KEY_BYTES[key_format]
        sets = inputs(case, DEVICE, sets=input_sets(key_bytes))
        name = key_format.name.lower()
        new = {f"ours {name}": our_calls(sets)}
        if upstream and key_format in UPSTREAM_TOLERANCE:
            new[f"upstream {name}"] = upstream_calls(sets)
        if key_format == KeyFormat.BF16:
            new["torch bf16"] = torch_calls(sets[:4])
            calls[SAME_BYTES] = copy_calls(moved_bytes(requests, tokens, rows, BF16))
        wanted = score_reference(
            sets[0].q,
            sets[0].keys,
            sets[0].page_table,
            sets[0].visible,
            scale=SCALE,
            key_scale=sets[0].key_scale,
            dtype=torch.float64,
        )
        for contender, its_calls in new.items():
            found = its_calls[0]()
            assert isinstance(found, torch.Tensor)
            errors[contender] = error(found, sets[0], wanted)
        limit = TOLERANCE[key_format]
        require(errors[f"ours {name}"] <= limit, f"{case.name} {name} {errors}")
        calls |= new
    timings = interleaved(calls, rounds=rounds)
    return {
        "requests": requests,
        "tokens": tokens,
        "rows": rows,
        "errors": errors,
        "timings": {name: asdict(timing) for name, timing in timings.items()},
        "bytes": {
            f"ours {each.name.lower()}": moved_bytes(requests, tokens, rows, each)
            for each in KeyFormat
        },
    }


def markdown(result: dict[str, Any]) -> str:
    machine, copy = result["machine"], result["copy_gb_per_s"]
    versions = machine["versions"]
    lines = [
        "# Scorer of compressed keys",
        "",
        f"{machine['gpu']}, torch {versions['torch']}, triton {versions['triton']}, "
        f"sglang {versions['sglang']}, tilelang {result['tilelang']}, commit "
        f"{machine['commit'][:12]}. {machine['method']}. Test: {result['test']}.",
        "",
        f"µs per layer call, page tables for {CONTEXT_TOKENS // K}k tokens. Rate: keys "
        f"read once plus scores written, of the {copy:.0f} GB/s that a large copy "
        "reaches in this run. Copy: a device copy that moves as many bytes as the bf16 "
        "scorer. Upstream: SGLang's TileLang kernel.",
        "",
        "| rows | requests × context | bf16 | rate | copy | upstream | × | e4m3 "
        "| upstream | × | e4m3, scaled | MXFP4 | torch |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for shape in result["shapes"]:
        us = {name: timing["median_us"] for name, timing in shape["timings"].items()}
        rate = shape["bytes"]["ours bf16"] / us["ours bf16"] / 1e3
        cells = [
            f"{shape['rows']}",
            f"{shape['requests']} × {shape['tokens'] // K}k",
            f"{us['ours bf16']:.1f}",
            f"{rate:.0f} GB/s, {100 * rate / copy:.0f} %",
            f"{us[SAME_BYTES]:.1f}",
        ]
        for name in ("bf16", "e4m3"):
            cells += [] if name == "bf16" else [f"{us['ours e4m3']:.1f}"]
            other = us.get(f"upstream {name}")
            cells += (
                ["–", "–"]
                if other is None
                else [f"{other:.1f}", f"{other / us[f'ours {name}']:.2f}"]
            )
        cells += [f"{us[f'ours {name}']:.1f}" for name in ("e4m3_scaled", "mxfp4")]
        lines.append("| " + " | ".join([*cells, f"{us['torch bf16']:.1f}"]) + " |")
    worst = {
        name: max(shape["errors"].get(name, 0.0) for shape in result["shapes"])
        for name in result["shapes"][0]["errors"]
    }
    lines += [
        "",
        "Largest error of a row against fp64, as 2-norms: "
        + ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="result files, without suffix")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--no-upstream", action="store_true")
    arguments = parser.parse_args()
    test = require_green("tests/kernels/test_score.py")
    result: dict[str, Any] = {
        "machine": header(),
        "tilelang": version_of("tilelang"),
        "test": test,
        "copy_gb_per_s": copy_rate(),
        "tiles": {
            f"{f.name.lower()}, {requests} requests": asdict(
                tile_for(f, DEVICE, requests=requests, hopper=f == BF16)
            )
            for f in KeyFormat
            for requests in (1, 4)
        },
        "shapes": [
            measure(
                requests,
                tokens,
                rows,
                upstream=not arguments.no_upstream,
                rounds=arguments.rounds,
            )
            for rows in arguments.rows
            for requests, tokens in SHAPES
        ],
    }
    publish(arguments.out, result, markdown(result))


if __name__ == "__main__":
    main()
