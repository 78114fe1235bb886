"""Figures and the table of `benchmarks.decode_gap`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.decode_gap.schedule import (
    CALLS,
    LEAST_GAPS,
    Measured,
    Window,
    Workload,
)

_OF_DEVICE = "-device"
PLACES = ("client_ms", "scheduler_ms", "plain_ms")


def as_result(workload: Workload, measured: Mapping[str, Measured]) -> dict[str, Any]:
    variants = {name: _of_variant(found) for name, found in measured.items()}
    added = {
        name: {
            place: {
                share: variants[name]["restores"][place][share]
                - variants[name + _OF_DEVICE]["restores"][place][share]
                for share in ("p50", "p99", "max")
            }
            for place in PLACES
        }
        for name in variants
        if name + _OF_DEVICE in variants
    }
    return {"workload": asdict(workload), "variants": variants, "added_ms": added}


def _of_variant(found: Measured) -> dict[str, Any]:
    restored = [answer.host_tokens > 0 for answer in found.answers]
    return {
        "quiet": _of_window(found.quiet),
        "restores": _of_window(found.restores),
        "prefill": None if found.prefill is None else _of_window(found.prefill),
        "calls_us": {
            kind: spread(found.calls_s[kind], scale=1e6)
            for kind in CALLS
            if len(found.calls_s[kind]) >= LEAST_GAPS
        },
        "restored_share": sum(restored) / len(restored),
        "ttft_ms": spread([answer.seconds for answer in found.answers]),
        "prefill_s": found.prefill_s,
        "prefill_alone_s": found.prefill_alone_s,
    }


def _of_window(window: Window) -> dict[str, Any]:
    return {
        "client_ms": spread(window.client_s),
        "scheduler_ms": spread(window.scheduler_s),
        "plain_ms": spread(window.plain_s),
    }


def spread(seconds: Sequence[float], *, scale: float = 1e3) -> dict[str, float]:
    """Number, median, 99th percentile (interpolated) and maximum.

    Args:
        seconds: two at least.
        scale: of the results to a second; milliseconds by default.
    """
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "n": len(seconds),
        "p50": scale * statistics.median(seconds),
        "p99": scale * cuts[98],
        "max": scale * max(seconds),
    }


def as_markdown(result: dict[str, Any]) -> str:
    facts, load = result["machine"], result["workload"]
    lines = [
        "# Gaps between tokens, while prompts are restored",
        "",
        f"{facts['gpu'] or facts['cpu']}, sglang {facts['versions']['sglang']}, torch "
        f"{facts['versions']['torch']}, commit {facts['commit'][:12]}. "
        f"{load['streams']} streams; {load['restores']} times one of {load['prompts']} "
        f"prompts of {load['prompt_tokens']:,} tokens comes again with fresh tokens "
        f"behind. {result['note']}".rstrip(),
        "",
        "ms: median / 99th percentile / longest. `-device`: the same schedule answered "
        "from device memory, no host memory behind.",
        "",
        "| server | restored | first token | client, streams alone | client, restores "
        "| scheduler, streams alone | scheduler, restores | of these, no prompt's "
        "forward between |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, of in result["variants"].items():
        cells = [
            name,
            f"{of['restored_share']:.0%}",
            _cell(of["ttft_ms"]),
            *(
                _cell(of[window][place])
                for place in ("client_ms", "scheduler_ms")
                for window in ("quiet", "restores")
            ),
            _cell(of["restores"]["plain_ms"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for name, added in result["added_ms"].items():
        lines += [
            "",
            f"Added by host memory, {name}, at the 99th percentile: client "
            f"{added['client_ms']['p99']:+.2f} ms, scheduler "
            f"{added['scheduler_ms']['p99']:+.2f} ms, with no prompt's forward "
            f"between {added['plain_ms']['p99']:+.2f} ms.",
        ]
    lines += _of_calls(result)
    if load["prefill_tokens"]:
        lines += _of_prefill(result)
    return "\n".join(lines) + "\n"


def _of_calls(result: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {kind} | {of['n']} | {_cell(of)} |"
        for name, variant in result["variants"].items()
        for kind, of in variant["calls_us"].items()
    ]
    if not rows:
        return []
    return [
        "",
        "The scheduler's thread in one call that submits copies, µs:",
        "",
        "| server | call | calls | median / 99th percentile / longest |",
        "|---|---|---:|---:|",
        *rows,
    ]


def _of_prefill(result: dict[str, Any]) -> list[str]:
    tokens = result["workload"]["prefill_tokens"]
    lines = [
        "",
        f"A cold prompt of {tokens:,} tokens beside the streams, and another one "
        "alone, whose time is the forwards' own:",
        "",
        "| server | client gaps, ms | scheduler gaps, ms | prompt, s | alone, s |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, of in result["variants"].items():
        client, scheduler = (
            _cell(of["prefill"][place]) for place in ("client_ms", "scheduler_ms")
        )
        lines.append(
            f"| {name} | {client} | {scheduler} | {of['prefill_s']:.2f} "
            f"| {of['prefill_alone_s']:.2f} |"
        )
    return lines


def _cell(spread_of: Mapping[str, float]) -> str:
    return " / ".join(f"{spread_of[name]:.1f}" for name in ("p50", "p99", "max"))
