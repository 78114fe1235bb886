"""The result of a run as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import machine
from benchmarks.radix_cache.run import Side
from benchmarks.radix_cache.samples import Sample
from benchmarks.radix_cache.summary import compare, summarize

SCHEMA = 1


def document(
    arguments: dict[str, Any],
    sides: Sequence[Side],
    *,
    wanted_requests: int,
    left_out: int,
    stopped: str,
) -> dict[str, Any]:
    """Everything that was measured.

    Args:
        wanted_requests: of each server.
        left_out: turns that were too long for a server.
        stopped: why the run ended early; empty for a whole one.
    """
    servers = [_server(side) for side in sides]
    found: dict[str, Any] = rounded(
        {
            "benchmark": "radix_cache",
            "schema": SCHEMA,
            "partial": bool(stopped),
            "stopped": stopped,
            "arguments": arguments,
            "client_machine": machine.describe(),
            "wanted_requests": wanted_requests,
            "left_out_turns": left_out,
            "servers": servers,
            "comparison": compare(*sides) if len(sides) == 2 else None,
        }
    )
    return found


def _server(side: Side) -> dict[str, Any]:
    samples = sorted(side.samples, key=lambda sample: sample.number)
    return {
        "name": side.name,
        "url": side.server.url,
        "facts": asdict(side.facts),
        "summary": summarize(side),
        "marks": [asdict(mark) for mark in side.marks],
        "samples": [_sample(sample) for sample in samples],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    fields = asdict(sample)
    gaps = fields.pop("gaps")
    fields["sources"] = {name: n for name, n in sample.sources.items() if n}
    tokens = sum(tokens for _, tokens in gaps)
    seconds = [gap for gap, _ in gaps]
    return fields | {
        "deepest_source": sample.deepest,
        "inter_token_s": sum(seconds) / tokens if tokens else None,
        "longest_gap_s": max(seconds, default=None),
    }


def rounded(value: Any) -> Any:
    """Floats with six digits after the point: microseconds."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return value
