"""What the checkpoint hooks cost the scheduler thread, per request and forward.

    python -m benchmarks.hook_cost [--out DIR]

Calls each hook around a stand-in that does nothing, so what is timed is the hook and
the planner behind it, and nothing of SGLang. Writes `hook_cost.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import machine
from sglang_qsa.boundary import Grid, decode_interval
from sglang_qsa.demo import cpu_engine
from sglang_qsa.hooks import active
from sglang_qsa.hooks.active import CheckpointRule
from sglang_qsa.hooks.chunks import cut_first_chunk
from sglang_qsa.hooks.publish import guard
from sglang_qsa.hooks.second import presented, take
from sglang_qsa.hooks.snapshot import snapshot

REPEATS, BATCH = 2000, 10
PROMPTS = {
    "1,000 tokens, cold": (1000, 0, None),
    "30,000 tokens, cold": (30_000, 0, None),
    "30,000 tokens, 28,672 found": (30_000, 28_672, None),
    "5,000 tokens, branch at 3,072": (5000, 1024, 3072),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.hook_cost", description=__doc__
    )
    parser.add_argument("--out", type=Path)
    out = parser.parse_args(argv).out
    cpu_engine.activate()  # the admission record is SGLang's
    result = {"machine": machine.describe(), "us": _measure()}
    table = as_markdown(result)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "hook_cost.json").write_text(json.dumps(result, indent=2) + "\n")
        (out / "hook_cost.md").write_text(table)
    print(table)
    return 0


def _measure() -> dict[str, dict[str, float]]:
    grid = Grid(snapshots=2)
    measured = {}
    for name, rule in (
        ("without a rule", None),
        ("with the planner", CheckpointRule(grid, decode_interval(grid))),
    ):
        active.use(rule)
        for prompt, facts in PROMPTS.items():
            measured[f"{prompt}, {name}"] = _timed(_one_forward(*facts))
    active.use(None)
    return measured


def _one_forward(length: int, found: int, branch: int | None) -> Callable[[], None]:
    """Admission, snapshot and publication of one request in one forward."""
    from sglang.srt.managers.schedule_policy import _PrefillAdmission

    end = min(found + 8192, length)
    req = SimpleNamespace(
        rid="r",
        prefix_len=found,
        extend_end=end,
        full_untruncated_fill_ids=array("q", range(length)),
        mamba_branching_seqlen=branch,
        kv=SimpleNamespace(
            mamba_next_track_idx=0,
            mamba_last_track_seqlen=0,
            mamba_prev_track_seqlen=None,
        ),
        session=None,
        session_id=None,
        skip_radix_cache_insert=False,
        finished_reason=None,
    )
    batch = _batch(req)
    adder = SimpleNamespace(new_chunked_req=None, rem_chunk_tokens=8192)
    admission = _PrefillAdmission(found, end - found, 0, end < length, 0)
    call: dict[str, Any] = {
        "req": req,
        "insert_params": SimpleNamespace(),
        "token_ids_len": end,
        "is_finished": False,
    }

    def forward() -> None:
        cut_first_chunk(lambda *_args, **_facts: admission, adder, req)
        snapshot(lambda *_args: None, batch, req)
        other = take(req)
        if other is not None:
            with presented(req, other):
                guard(lambda *_args, **_call: None, None, **call)
        guard(lambda *_args, **_call: found + 64, None, **call)

    return forward


def _batch(req: Any) -> Any:
    """A batch of one request, with slots to spare."""
    slot = object()
    allocator = SimpleNamespace(available_size=lambda: 64, alloc=lambda _count: slot)
    return SimpleNamespace(
        reqs=[req],
        req_to_token_pool=SimpleNamespace(mamba_allocator=allocator),
        tree_cache=SimpleNamespace(mamba_evictable_size=lambda: 0),
    )


def _timed(call: Callable[[], None]) -> dict[str, float]:
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        samples.append((time.perf_counter_ns() - started) / BATCH / 1000)
    samples.sort()
    return {
        "median": round(statistics.median(samples), 2),
        "p99": round(samples[len(samples) * 99 // 100], 2),
    }


def as_markdown(result: dict[str, Any]) -> str:
    facts = result["machine"]
    lines = [
        "# Checkpoint hooks on the scheduler thread",
        "",
        f"{facts['cpu']}, Python {facts['python']}, commit {facts['commit'][:12]}. "
        f"Admission, snapshot and publication of one request in one forward, SGLang's "
        f"own work not counted; {REPEATS:,} samples of {BATCH}.",
        "",
        "| request | median µs | p99 µs |",
        "|---|---:|---:|",
    ]
    for name, cost in result["us"].items():
        lines.append(f"| {name} | {cost['median']} | {cost['p99']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
