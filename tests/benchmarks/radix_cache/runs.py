"""Small runs of the command, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.radix_cache.command import main
from tests.benchmarks.radix_cache.fake_server import FakeServer

SMALL = (
    *("--workload", "chat", "--sessions", "6", "--clients", "3", "--scale", "0.3"),
    *("--warm-up", "0", "--settle-s", "0.01"),
)
SIZES = ("--set", "turns=3", "--set", "answer=40")
REQUESTS = 18


def run(
    out: Path,
    *servers: FakeServer,
    arguments: tuple[str, ...] = (),
    sizes: tuple[str, ...] = SIZES,
) -> int:
    """The exit code of a run against one server or two."""
    urls = [("--url", "--url-baseline")[at] for at in range(len(servers))]
    flat = [part for pair in zip(urls, servers, strict=True) for part in _flag(*pair)]
    return main([*flat, "--out", str(out), *SMALL, *sizes, *arguments])


def _flag(name: str, server: FakeServer) -> tuple[str, str]:
    return name, server.url


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "radix_cache.json").read_text())
    return found


def summary(out: Path, server: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = result(out)["servers"][server]["summary"]
    return found
