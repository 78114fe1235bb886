"""Host memory against stock HiCache: what a backup and a load cost, at the real sizes.

    python -m benchmarks.host_tier [--pages 2100] [--submissions 200] [--out DIR]

Real pools, tree and controller with no model behind: prefixes of random bytes are
backed up, evicted, loaded and compared. Stock and records take turns in one process,
and so does a plain copy of pinned memory, which is the floor. A forward is a run of
matrix products of about 100 ms on the stream that submissions are ordered after.
Writes `host_tier.json` and `.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.host_pools import (
    DevicePools,
    publish_settings,
    real_layout,
    real_pools,
)
from benchmarks.host_server import PAGE_TOKENS, Server, assert_same, prompt
from sglang_qsa.hooks import active
from sglang_qsa.layout import Layout

LENGTHS = (1024, 8192, 32_768, 131_072)
ROUNDS = 5
SUBMITTED_TOKENS = (8192, 32_768)
VARIANTS = ("stock", "records")
SLOTS = 8
_FIRST_IDS = itertools.count(10_000_000, 1_000_000)
COPIED = 1 << 30
"""Bytes of the plain copy."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.host_tier", description=__doc__
    )
    parser.add_argument("--pages", type=int, default=2100)
    parser.add_argument("--submissions", type=int, default=200, help="of each size")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    publish_settings()
    layout = real_layout()
    pools = real_pools(layout, pages=options.pages, slots=SLOTS)
    result: dict[str, Any] = {"machine": machine.describe(), "rounds": ROUNDS}
    forward = Forward()
    result["forward_ms"] = forward.milliseconds()
    result["pinned_gb_per_s"] = pinned_rates()
    for variant in VARIANTS:
        with serving(variant, layout, pools) as server:
            check(server)
            result[variant] = measure(server, forward, options.submissions)
        print(f"{variant}: done", file=sys.stderr, flush=True)
    table = as_markdown(result, layout)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "host_tier.json").write_text(json.dumps(result, indent=2) + "\n")
        (options.out / "host_tier.md").write_text(table)
    print(table)
    return 0


def measure(server: Server, forward: Forward, times: int) -> dict[str, Any]:
    return {
        "stream_ms": {n: streams(server, n) for n in LENGTHS},
        "submit_us": {
            n: submissions(server, forward, n, times) for n in SUBMITTED_TOKENS
        },
        "host_bytes": host_bytes(server),
    }


class Forward:
    """Matrix products on a stream of their own."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self._a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
        self._out = torch.empty_like(self._a)

    def start(self) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(64):
                torch.mm(self._a, self._a, out=self._out)

    def milliseconds(self) -> float:
        self.start()
        torch.cuda.synchronize()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            begun.record()
            self.start()
            ended.record()
        torch.cuda.synchronize()
        return float(begun.elapsed_time(ended))


@contextmanager
def serving(variant: str, layout: Layout, pools: DevicePools) -> Iterator[Server]:
    """A server over `pools`, whose memory is the same for both variants."""
    ours = variant == "records"
    active.identify(layout if ours else None)
    io = ("page_first_direct", "direct") if ours else ("page_first", "kernel")
    server = Server(pages=pools.pages, ratio=1.5, slots=SLOTS, device="cuda", io=io)
    try:
        server.open(pools)
        yield server
    finally:
        torch.cuda.synchronize()
        server.cache.reset()
        pools.allocator.clear()
        pools.requests.mamba_allocator.clear()
        server.cache.release_host_resources()
        active.identify(None)


def check(server: Server) -> None:
    """Every byte of a short prefix comes back."""
    tokens = prompt(5, first=5_000_000)
    wanted = server.prefill(tokens, seed=1)
    server.back_up()
    server.evict()
    server.wipe()
    _, req = server.load(tokens)
    assert_same(server.served(tokens), wanted)
    server.release(req)
    server.evict()


def pinned_rates() -> dict[str, float]:
    """GB/s of one large copy each way, median of `ROUNDS`."""
    host = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPIED, dtype=torch.uint8, device="cuda")

    def rate(copy: Callable[[], object]) -> float:
        times = []
        for _ in range(ROUNDS):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            copy()
            ended.record()
            torch.cuda.synchronize()
            times.append(begun.elapsed_time(ended))
        return float(COPIED / statistics.median(times) / 1e6)

    return {
        "load": rate(lambda: device.copy_(host, non_blocking=True)),
        "backup": rate(lambda: host.copy_(device, non_blocking=True)),
    }


def streams(server: Server, tokens: int) -> dict[str, list[float]]:
    """Milliseconds on the device of backup and load, of a prefix and its state."""
    times: dict[str, list[float]] = {"backup": [], "load": []}
    for _ in range(ROUNDS + 1):
        ids = publish(server, tokens)
        torch.cuda.synchronize()
        server.cache.flush_pending_backups()
        torch.cuda.synchronize()
        times["backup"].append(elapsed(server.controller.ack_write_queue))
        server.cache.writing_check()
        server.evict()
        torch.cuda.synchronize()
        _, req = server.submit_load(ids)
        torch.cuda.synchronize()
        times["load"].append(elapsed(server.controller.ack_load_queue))
        server.cache.loading_check()
        server.release(req)
        server.evict()
    return {kind: found[1:] for kind, found in times.items()}


def publish(server: Server, tokens: int) -> Sequence[int]:
    """A prefix that shares nothing with those before."""
    ids = prompt(tokens // PAGE_TOKENS, first=next(_FIRST_IDS))
    server.publish(ids, server.rows(len(ids)), server.slot())
    return ids


def elapsed(acks: Sequence[Any]) -> float:
    return float(acks[-1].start_event.elapsed_time(acks[-1].finish_event))


def submissions(
    server: Server, forward: Forward, tokens: int, times: int
) -> dict[str, list[float]]:
    """Microseconds of the scheduler's thread in each call, a forward in flight."""
    spent: dict[str, list[float]] = {"backup": [], "load": []}
    server.controller.write_fence_stream = forward.stream
    server.controller.load_fence_stream = forward.stream
    for _ in range(times + 3):
        ids = publish(server, tokens)
        torch.cuda.synchronize()
        forward.start()
        begun = time.perf_counter()
        server.cache.flush_pending_backups()
        spent["backup"].append((time.perf_counter() - begun) * 1e6)
        torch.cuda.synchronize()
        server.cache.writing_check()
        server.evict()
        _, req = server.queue_load(ids)
        torch.cuda.synchronize()
        forward.start()
        begun = time.perf_counter()
        server.cache.ready_to_load_host_cache()
        spent["load"].append((time.perf_counter() - begun) * 1e6)
        torch.cuda.synchronize()
        server.cache.loading_check()
        server.release(req)
        server.evict()
    return {kind: found[3:] for kind, found in spent.items()}


def host_bytes(server: Server) -> dict[str, int]:
    """Of a page and of a checkpoint in host memory."""
    pools = [server.host(name) for name in ("kv", "indexer")]
    return {
        "page": sum(pool.size_per_token for pool in pools) * PAGE_TOKENS,
        "checkpoint": server.host("mamba").size_per_token,
    }


def as_markdown(result: dict[str, Any], layout: Layout) -> str:
    """The tables, floors and ratios included."""
    rates = result["pinned_gb_per_s"]
    lines = [
        "# Host memory: records against stock HiCache",
        "",
        f"{result['machine']['gpu']}, commit {result['machine']['commit'][:12]}, "
        f"sglang {result['machine']['versions']['sglang']}. Pinned memory: "
        f"{rates['load']:.1f} GB/s to the device, {rates['backup']:.1f} GB/s from it.",
        "",
        "| tokens + checkpoint | way | floor, ms | stock, ms | records, ms | stock / "
        "floor | records / floor | records, of the rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tokens in LENGTHS:
        moved = tokens // PAGE_TOKENS * layout.page_bytes + layout.checkpoint_bytes
        for way in ("load", "backup"):
            floor = moved / rates[way] / 1e6
            stock, ours = (
                statistics.median(result[v]["stream_ms"][tokens][way]) for v in VARIANTS
            )
            lines.append(
                f"| {tokens:,} | {way} | {floor:.2f} | {stock:.2f} | {ours:.2f} | "
                f"{stock / floor:.2f} | {ours / floor:.2f} | {floor / ours:.0%} |"
            )
    lines += [
        "",
        f"The scheduler's thread in one call, with a forward of "
        f"{result['forward_ms']:.0f} ms in flight, µs:",
        "",
        "| tokens + checkpoint | call | stock median | stock p99 | records median | "
        "records p99 |",
        "|---|---|---|---|---|---|",
    ]
    for tokens in SUBMITTED_TOKENS:
        for way in ("backup", "load"):
            figures = [
                f"{figure:,.0f}"
                for variant in VARIANTS
                for spent in [sorted(result[variant]["submit_us"][tokens][way])]
                for figure in (
                    statistics.median(spent),
                    spent[int(len(spent) * 0.99)],
                )
            ]
            lines.append(f"| {tokens:,} | {way} | {' | '.join(figures)} |")
    sizes = [result[variant]["host_bytes"] for variant in VARIANTS]
    prompts = [512 * size["page"] + size["checkpoint"] for size in sizes]
    lines += [
        "",
        "| host memory | stock | records |",
        "|---|---|---|",
        "| bytes of a stored prompt of 32,768 tokens | "
        + " | ".join(f"{size:,}" for size in prompts)
        + " |",
        "| checkpoints in 10⁹ bytes | "
        + " | ".join(f"{1e9 / size['checkpoint']:.2f}" for size in sizes)
        + " |",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
