"""Decode step time of stock SGLang and of the plugin's kernels, side by side.

    python -m benchmarks.decode_step --out DIR [-- launch flags]

Runs stock once and the plugin twice, each in a process of its own, on the real shapes
with dummy weights and random K, V and index keys, no speculation. The two runs of the
plugin have to give the same greedy tokens at every step. Writes `decode_step.json` and
`decode_step.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.real_shapes import write_real_shapes
from sglang_qsa.demo.cpu_engine import child_environment
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.tiny_model import cached_checkpoint

STOCK, OURS, AGAIN = "stock", "ours", "ours, second run"
KERNEL_OPTIONS = ("TOPK", "SCORE", "SPARSE_DECODE")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    with ProgressLine() as progress:
        result = _measure(options, progress)
    (options.out / "decode_step.json").write_text(json.dumps(result, indent=1) + "\n")
    if not result["ok"]:
        print("two runs of ours gave other tokens; no table")
        return 1
    table = as_markdown(result)
    (options.out / "decode_step.md").write_text(table)
    print(table)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.decode_step", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument(
        "--contexts", default="32768,131072", help="multiples of 64 tokens"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="the tiny model instead of real shapes"
    )
    parser.add_argument("--note", default="", help="goes into the result as it is")
    parser.add_argument("flags", nargs="*", metavar="-- LAUNCH_SERVER_FLAGS")
    return parser


def _measure(options: argparse.Namespace, progress: ProgressLine) -> dict[str, Any]:
    runs = {}
    for name in (STOCK, OURS, AGAIN):
        progress(name)
        runs[name] = _run(options, name)
    return {
        "machine": machine.describe(),
        "note": options.note,
        "flags": options.flags,
        "ms": {
            name: {f"{row['batch']} x {row['context']}": row["ms"] for row in rows}
            for name, rows in runs.items()
        },
        "ok": _outputs(runs[OURS]) == _outputs(runs[AGAIN]),
        "same_tokens_as_stock": _outputs(runs[OURS]) == _outputs(runs[STOCK]),
    }


def _outputs(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["outputs"] for row in rows]


def _run(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    model, flags = cached_checkpoint(), []
    if not options.tiny:
        model = write_real_shapes(options.out / "model", model)
        flags = ["--load-format", "dummy"]
    batches = options.batches.split(",")
    largest = max(map(int, batches))
    tokens = (max(map(int, options.contexts.split(","))) + 256) * largest
    # Nothing is kept between requests here, so each needs one state; with a radix
    # cache it would need several, and they would not fit beside these contexts.
    flags += ["--disable-radix-cache", "--max-mamba-cache-size", str(largest + 2)]
    flags += ["--max-running-requests", str(largest)]
    if options.device == "cuda":
        flags += ["--cuda-graph-bs-decode", *batches]
    log = options.out / f"{name.replace(', ', '-').replace(' ', '-')}.log"
    file = options.out / "run.json"
    with log.open("w") as stream:
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.decode_loop", str(file)),
                *(options.batches, options.contexts, "--"),
                *("--model-path", str(model), "--device", options.device),
                *("--max-total-tokens", str(tokens)),
                *flags,
                *options.flags,
            ],
            env=_environment(options, name),
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=True,
        )
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def _environment(options: argparse.Namespace, name: str) -> dict[str, str]:
    environment = dict(os.environ)
    if options.device == "cpu":
        environment = child_environment(environment)
    if name == STOCK:
        environment["SGLANG_PLUGINS"] = "none"
    else:
        environment |= {f"SGLANG_QSA_KERNEL_{op}": "on" for op in KERNEL_OPTIONS}
    return environment


def as_markdown(result: dict[str, Any]) -> str:
    facts = result["machine"]
    lines = [
        "# Decode step, stock and ours",
        "",
        f"{facts['gpu'] or facts['cpu']}, sglang {facts['versions']['sglang']}, torch "
        f"{facts['versions']['torch']}, commit {facts['commit'][:12]}. Real shapes, "
        f"dummy weights, CUDA graphs, no speculation; median step. {result['note']}",
        "",
        "| requests x context | stock, ms | ours, ms | stock / ours |",
        "|---|---:|---:|---:|",
    ]
    for shape, stock in result["ms"][STOCK].items():
        ours = result["ms"][OURS][shape]
        lines.append(f"| {shape} | {stock} | {ours} | {stock / ours:.2f} |")
    lines += ["", "Greedy tokens of two runs of ours: the same at every step."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
