"""What a resend and the next turn find again, length by length: stock and ours.

    python -m benchmarks.reuse --out DIR [--device cuda --real-shapes] [-- flags]

Starts the real server twice, without and with the plugin's checkpoints, no tier behind
either, and sends both the same prompts. Counts are the server's own report. Writes
`reuse.json` and `reuse.md`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.real_shapes import write_real_shapes
from sglang_qsa.demo.client import Generation, generate
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.geometry import PAGE_TOKENS
from sglang_qsa.preflight import BACKEND_NAME

TURN_TOKENS = 300
SHORTEST, LONGEST = 65, 1100
RANDOM_LENGTHS = 48
FORK_TOKENS, FORK_AT, FORKS = 5000, 3072, 6
STOCK, OURS = "stock", "ours"
BACKEND_FLAGS = ("--radix-cache-backend", BACKEND_NAME)


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens that a server found again for one prompt."""

    length: int
    resend: int
    next_turn: int
    """Of the same prompt and `TURN_TOKENS` more."""
    next_turn_resend: int
    output_ids: tuple[int, ...]
    """Greedy answer of the cold prompt."""

    def lost(self) -> dict[str, int]:
        """Tokens computed again beyond the 64 that a resend may cost, by request."""
        allowed = self.length - PAGE_TOKENS
        return {
            "resend": max(allowed - self.resend, 0),
            "next turn": max(allowed - self.next_turn, 0),
            "next turn, resent": max(allowed + TURN_TOKENS - self.next_turn_resend, 0),
        }


def sweep_lengths(random_lengths: int = RANDOM_LENGTHS) -> list[int]:
    """Every multiple of a page and its neighbours' kind: random lengths between."""
    source = random.Random(3)
    between = source.sample(range(SHORTEST, LONGEST + 1), random_lengths)
    multiples = range(2 * PAGE_TOKENS, LONGEST + 1, PAGE_TOKENS)
    return sorted({SHORTEST, LONGEST, *between, *multiples})


def sweep(url: str, lengths: Sequence[int], progress: Any = None) -> list[Reuse]:
    """Send each length four times; prompts share no page with each other."""
    rows = []
    for at, length in enumerate(lengths, 1):
        if progress is not None:
            progress(f"{at} of {len(lengths)}: {length} tokens")
        first = prompt(length)
        turn = first + prompt(LONGEST + length)[:TURN_TOKENS]
        cold = generate(url, first)
        resend, next_turn, again = (
            generate(url, tokens, max_new_tokens=1).device_tokens
            for tokens in (first, turn, turn)
        )
        _require_cold(cold)
        rows.append(Reuse(length, resend, next_turn, again, cold.output_ids))
    return rows


@dataclass(frozen=True, slots=True)
class Fork:
    """Prompts that share `FORK_AT` tokens with one sent before, and go on elsewhere."""

    seconds: float
    """Of the second prompt, which takes its state at the fork and its own (ours, in
    two forwards), or one of them (stock)."""
    second_resend: int
    third: int
    """Tokens that a third prompt over the same beginning finds."""


def forks(url: str, repeats: int, progress: Any = None) -> list[Fork]:
    """Fork `repeats` prompts; `FORK_AT` is where each second and third leave it."""
    found = []
    for at in range(repeats):
        if progress is not None:
            progress(f"fork {at + 1} of {repeats}")
        first = prompt(FORK_TOKENS - 1000 + at)
        second, third = (
            first[:FORK_AT] + prompt(FORK_TOKENS * times + at)[: FORK_TOKENS - FORK_AT]
            for times in (2, 3)
        )
        generate(url, first, max_new_tokens=1)
        timed = generate(url, second, max_new_tokens=1)
        resend, other = (
            generate(url, tokens, max_new_tokens=1).device_tokens
            for tokens in (second, third)
        )
        found.append(Fork(round(timed.seconds, 5), resend, other))
    return found


def _require_cold(answer: Generation) -> None:
    if answer.recomputed_tokens != answer.prompt_tokens:
        raise RuntimeError(
            f"{answer.prompt_tokens} tokens were not cold; start with a fresh server"
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    with ProgressLine() as progress:
        result = _measure(options, progress)
    (options.out / "reuse.json").write_text(json.dumps(result, indent=2) + "\n")
    table = as_markdown(result)
    (options.out / "reuse.md").write_text(table)
    print(table)
    return 0 if result["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.reuse", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument(
        "--real-shapes",
        action="store_true",
        help="planes of the real sizes, dummy weights, instead of the tiny model",
    )
    parser.add_argument("--random-lengths", type=int, default=RANDOM_LENGTHS)
    parser.add_argument("flags", nargs="*", metavar="-- LAUNCH_SERVER_FLAGS")
    return parser


def _measure(options: argparse.Namespace, progress: ProgressLine) -> dict[str, Any]:
    lengths = sweep_lengths(options.random_lengths)
    rows, forked = {}, {}
    for name in (STOCK, OURS):
        with _server(options, name) as server:
            server.wait_ready(progress)

            def say(text: str, name: str = name) -> None:
                progress(f"{name}, {text}")

            rows[name] = sweep(server.url, lengths, say)
            forked[name] = forks(server.url, FORKS, say)
    same = [a.output_ids == b.output_ids for a, b in zip(*rows.values(), strict=True)]
    return {
        "machine": machine.describe(),
        "flags": options.flags,
        "model": "real shapes, dummy weights" if options.real_shapes else "tiny model",
        "rows": {name: [asdict(row) for row in found] for name, found in rows.items()},
        "lost_tokens": {name: _lost(found) for name, found in rows.items()},
        "forks": {
            name: [asdict(fork) for fork in found] for name, found in forked.items()
        },
        "cold_answers_equal": sum(same),
        "ok": all(same) and not any(_lost(rows[OURS]).values()),
    }


def _server(options: argparse.Namespace, name: str) -> SGLangServer:
    work = options.out / "logs" / name
    work.mkdir(parents=True, exist_ok=True)
    model, flags = cached_checkpoint(), []
    if options.real_shapes:
        model = write_real_shapes(options.out / "model", model)
        flags = ["--load-format", "dummy", "--skip-tokenizer-init"]
    return SGLangServer(
        model,
        work,
        device=options.device,
        flags=[
            # Room for every prompt of the sweep: eviction is another question.
            *("--max-total-tokens", "262144", "--max-mamba-cache-size", "320"),
            *(BACKEND_FLAGS if name == OURS else ()),
            *flags,
            *options.flags,
        ],
        with_plugin=name == OURS,
    )


def _lost(rows: Sequence[Reuse]) -> dict[str, int]:
    """How many lengths lose more than a page, by request."""
    losses = [row.lost() for row in rows]
    return {kind: sum(loss[kind] > 0 for loss in losses) for kind in losses[0]}


def as_markdown(result: dict[str, Any]) -> str:
    """Both servers side by side, one line per length."""
    facts = result["machine"]
    lines = [
        "# Reuse by prompt length: stock and ours",
        "",
        f"{facts['gpu'] or facts['cpu']}, sglang {facts['versions']['sglang']}, commit "
        f"{facts['commit'][:12]}, {result['model']}, device tree alone. Tokens found "
        f"again of the prompt (resend), of it and {TURN_TOKENS} more (next turn), of "
        "that again.",
        "",
        "| lengths that lose more than a page | " + " | ".join(_kinds(result)) + " |",
        "|---|" + "---:|" * len(_kinds(result)),
    ]
    count = len(result["rows"][STOCK])
    for name, losses in result["lost_tokens"].items():
        cells = [f"{losses[kind]} of {count}" for kind in _kinds(result)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Greedy answers of the cold prompts: {result['cold_answers_equal']} of "
        f"{count} equal between the two.",
        "",
        *_fork_table(result["forks"]),
        "",
        "| tokens | stock: resend | next turn | resent | ours: resend | next turn "
        "| resent |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for pair in zip(*result["rows"].values(), strict=True):
        cells = [pair[0]["length"]] + [
            row[key]
            for row in pair
            for key in ("resend", "next_turn", "next_turn_resend")
        ]
        lines.append("| " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _fork_table(forked: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        f"A prompt of {FORK_TOKENS:,} tokens that leaves one sent before after "
        f"{FORK_AT:,}, median of {FORKS}:",
        "",
        "| | ms | its resend finds | a third over the same beginning finds |",
        "|---|---:|---:|---:|",
    ]
    for name, found in forked.items():
        ms = statistics.median(fork["seconds"] for fork in found) * 1000
        resend, third = (
            min(fork[key] for fork in found) for key in ("second_resend", "third")
        )
        lines.append(f"| {name} | {ms:,.1f} | {resend:,} | {third:,} |")
    return lines


def _kinds(result: dict[str, Any]) -> list[str]:
    return list(result["lost_tokens"][STOCK])


if __name__ == "__main__":
    sys.exit(main())
