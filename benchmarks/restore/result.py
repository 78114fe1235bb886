"""The result of a run as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import machine
from benchmarks.radix_cache.result import rounded
from benchmarks.restore import ceiling, faults, summary
from benchmarks.restore.run import Side
from benchmarks.restore.samples import Sample

SCHEMA = 1


def document(
    arguments: dict[str, Any], sides: Sequence[Side], stopped: str
) -> dict[str, Any]:
    """Everything that was measured; times the copies that it is compared with.

    Args:
        stopped: why the run ended early; empty for a whole one.
    """
    copies = ceiling.measure(summary.sizes(sides))
    servers = [_server(side, copies) for side in sides]
    compared = [server["rows"] for server in servers]
    found: dict[str, Any] = rounded(
        {
            "benchmark": "restore",
            "schema": SCHEMA,
            "partial": bool(stopped),
            "stopped": stopped,
            "arguments": arguments,
            "client_machine": machine.describe(),
            "pinned_copies": {
                "device": copies.device,
                "copies": [
                    {"bytes": size, "seconds": seconds}
                    for size, seconds in copies.seconds.items()
                ],
            },
            "faults": [asdict(f) for f in faults.find(sides, arguments["between"])],
            "servers": servers,
            "comparison": summary.compare(*compared) if len(sides) == 2 else None,
        }
    )
    return found


def _server(side: Side, copies: ceiling.Ceiling) -> dict[str, Any]:
    return {
        "name": side.name,
        "url": side.server.url,
        "facts": asdict(side.facts),
        "capacity_tokens": side.capacity_tokens,
        "rows": summary.rows(side, copies),
        "samples": [_sample(sample) for sample in side.samples],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return asdict(sample) | {
        "ended": sample.ended,
        "served": sample.served,
        "outputs_equal": sample.outputs_equal,
        "compared_with": sample.yardstick,
        "added_s": sample.added_s,
    }
