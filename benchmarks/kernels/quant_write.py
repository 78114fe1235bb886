"""Quantising writes of K and V, beside a bf16 copy to the same slots and PyTorch.

    python -m benchmarks.kernels.quant_write --out benchmarks/results/NAME

Nothing is printed unless the op's test is green on this GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
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
    require_green,
)
from sglang_qsa_kernels.quant_write import (
    write_keys_e4m3,
    write_keys_mxfp4,
    write_kv_e4m3,
)
from sglang_qsa_kernels.quant_write.cases import KEY_DIM, KV_DIM, KV_HEADS
from sglang_qsa_kernels.quant_write.tiles import tile_for

DEVICE = torch.device("cuda")
TOKENS = [1, 4, 64, 256, 2048, 8192]
SLOTS = 1 << 18
ROW = (KV_HEADS, KV_DIM)
READ_BYTES = 2 * KV_HEADS * KV_DIM * 2
WRITTEN_BYTES = 2 * KV_HEADS * (KV_DIM + 4)


@dataclass(frozen=True, slots=True)
class Pools:
    """Destinations, as large as a server's."""

    bf16: tuple[torch.Tensor, torch.Tensor]
    codes: tuple[torch.Tensor, torch.Tensor]
    scales: tuple[torch.Tensor, torch.Tensor]
    key_codes: torch.Tensor
    key_scale: torch.Tensor
    packed: torch.Tensor
    exponent: torch.Tensor


def pools() -> Pools:
    def pool(dtype: torch.dtype, *row: int) -> torch.Tensor:
        return torch.empty((SLOTS, *row), dtype=dtype, device=DEVICE)

    e4m3 = torch.float8_e4m3fn
    return Pools(
        bf16=(pool(torch.bfloat16, *ROW), pool(torch.bfloat16, *ROW)),
        codes=(pool(e4m3, *ROW), pool(e4m3, *ROW)),
        scales=(pool(torch.float32, KV_HEADS), pool(torch.float32, KV_HEADS)),
        key_codes=pool(e4m3, KEY_DIM),
        key_scale=pool(torch.float32),
        packed=pool(torch.uint8, KEY_DIM // 2),
        exponent=pool(torch.uint8, KEY_DIM // 32),
    )


def calls_at(tokens: int, into: Pools) -> dict[str, list[Call]]:
    """Writes of `tokens` tokens and of their groups' keys, to random slots."""
    sets = [one_set(tokens, into) for _ in range(input_sets(tokens * READ_BYTES))]
    return {name: [calls[name] for calls in sets] for name in sets[0]}


def one_set(tokens: int, into: Pools) -> dict[str, Call]:
    k, v = torch.randn((2, tokens, *ROW), device=DEVICE).bfloat16()
    slots = torch.randperm(SLOTS - 1, device=DEVICE)[:tokens] + 1
    keys = torch.randn((-(-tokens // 4), KEY_DIM), device=DEVICE).bfloat16()
    few = slots[: len(keys)]

    def copy() -> None:
        for pool, x in zip(into.bf16, (k, v), strict=True):
            pool.index_copy_(0, slots, x)

    def in_torch() -> None:
        for x, codes, scales in zip((k, v), into.codes, into.scales, strict=True):
            amax = x.float().abs().amax(-1)
            scale = amax / torch.full_like(amax, 448.0)
            new = (x / scale[..., None]).to(torch.float8_e4m3fn).view(torch.uint8)
            codes.view(torch.uint8).index_copy_(0, slots, new)
            scales.index_copy_(0, slots, scale)

    return {
        "kv": lambda: write_kv_e4m3(k, v, slots, *into.codes, *into.scales),
        "copy": copy,
        "torch": in_torch,
        "keys e4m3": lambda: write_keys_e4m3(keys, few, into.key_codes, into.key_scale),
        "keys mxfp4": lambda: write_keys_mxfp4(keys, few, into.packed, into.exponent),
    }


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = machine["versions"]
    lines = [
        "# Quantise on write",
        "",
        f"{machine['gpu']}, torch {versions['torch']}, triton {versions['triton']}, "
        f"commit {machine['commit'][:12]}. {machine['method']}. Test: "
        f"{result['test']}.",
        "",
        "µs per call: K and V of 2 heads × 256 to e4m3 with a scale per token and "
        "head, a bf16 copy of both to the same slots (two index_copy_), PyTorch's "
        "operators for the same bytes, and compressed keys of the tokens' groups. "
        "Rate: bytes read and written; a large copy reaches "
        f"{result['copy_gb_per_s']:.0f} GB/s.",
        "",
        "| tokens | K and V, e4m3 | rate | bf16 copy | torch | keys, e4m3 "
        "| keys, MXFP4 |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for shape in result["shapes"]:
        us = {name: timing["median_us"] for name, timing in shape["timings"].items()}
        rate = shape["tokens"] * (READ_BYTES + WRITTEN_BYTES) / us["kv"] / 1e3
        lines.append(
            f"| {shape['tokens']:,} | {us['kv']:.1f} | {rate:.0f} GB/s "
            f"| {us['copy']:.1f} | {us['torch']:.1f} | {us['keys e4m3']:.1f} "
            f"| {us['keys mxfp4']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="result files, without suffix")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    test = require_green("tests/kernels/test_quant_write.py")
    into = pools()
    result: dict[str, Any] = {
        "machine": header(),
        "test": test,
        "copy_gb_per_s": copy_rate(),
        "tile": asdict(tile_for(DEVICE)),
        "shapes": [
            {
                "tokens": tokens,
                "timings": {
                    name: asdict(timing)
                    for name, timing in interleaved(
                        calls_at(tokens, into), rounds=arguments.rounds
                    ).items()
                },
            }
            for tokens in TOKENS
        ],
    }
    publish(arguments.out, result, markdown(result))


if __name__ == "__main__":
    main()
