"""Small runs of the command, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.restore.command import main
from tests.benchmarks.restore.tiered_server import TieredServer

QUIET_S = 0.1
COPY_S_PER_BYTE = 1e-9
CAPACITY_TOKENS = 1280
LENGTHS = (192, 576)
"""Whole pages: with tokens behind them they come back whole."""

INFO = {"max_total_num_tokens": CAPACITY_TOKENS, "enable_hierarchical_cache": True}
LINKER = {
    "max_total_num_tokens": CAPACITY_TOKENS,
    "enable_unified_cache_external_linker": True,
}


def serve(**facts: Any) -> TieredServer:
    """A server with host memory."""
    return TieredServer(**({"info": INFO} | facts))


def run(out: Path, *servers: TieredServer, arguments: tuple[str, ...] = ()) -> int:
    """The exit code of a run against one server or two, of one repeat."""
    urls = [server.url for server in servers]
    pairs = zip(("--url", "--url-baseline"), urls, strict=False)
    flat = [part for pair in pairs for part in pair]
    lengths = [str(length) for length in LENGTHS]
    return main(
        [
            *(*flat, "--out", str(out), "--prompt-tokens", *lengths),
            *("--repeats", "1", "--warm-up", "0", "--between", "evict"),
            *("--settle-s", "5", *arguments),
        ]
    )


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "restore.json").read_text())
    return found


def rows(out: Path, server: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result(out)["servers"][server]["rows"]
    return found


def samples(out: Path, server: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result(out)["servers"][server]["samples"]
    return found
