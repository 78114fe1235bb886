"""What each checkpoint rule makes reusable, and what it costs. Needs no model.

    python -m benchmarks.boundaries --out DIR [--trace FILE.jsonl ...]

Replays made-up traces, or recorded ones, through the planner, through the rule of
stock SGLang 0.5.23 and through an ideal that keeps a checkpoint at every page. One
request runs after the other and nothing is evicted, so the figures are those of the
rules alone. Writes `boundaries.json`, `boundaries.md` and `boundaries.svg`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.boundary_replay import Replay, Totals, _deepest, replay
from benchmarks.boundary_report import ALL, as_markdown, draw
from benchmarks.boundary_rules import IDEAL, OURS, STOCK, Ours, Rule, Stock
from benchmarks.radix_cache.workloads import RAG, make, read_lengths
from benchmarks.real_shapes import CONFIG
from benchmarks.traces import MADE_UP, Request, Segment, page_keys, read_trace
from sglang_qsa.boundary import Grid, anchor, floor, forward_end, may_publish, plan
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.geometry import PAGE_TOKENS, ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout

STORE_CHUNKS = (64, 128, 256, 512, 1024)

TARGET_SHARE = 0.99
TARGET_CHECKPOINTS = 3.0
TARGET_COST_US = 20.0


def findable(rule: Rule, lengths: Sequence[int], store_chunk: int) -> float:
    """Share of prompts that a tier finds at their last chunk below the end.

    The tier stores what SGLang's LMCache connector does: up to the deepest state,
    rounded down to its chunk, if there is a state exactly there.
    """
    found = 0
    for number, tokens in enumerate(lengths):
        request = Request((Segment(f"p{number}", tokens),), Segment("", 0))
        keys = page_keys(request.prompt, PAGE_TOKENS)
        server = Replay(rule, chunk_tokens=tokens)
        server.serve(request, keys)
        stored = floor(_deepest(keys, server.states) * PAGE_TOKENS, store_chunk)
        found += stored == anchor(tokens, store_chunk) and (
            keys[stored // PAGE_TOKENS - 1] in server.states
        )
    return found / len(lengths)


def findable_by_chunk(seed: int, prompts: int) -> list[dict[str, Any]]:
    """The above for stock and ours, with prompts that one forward computes."""
    lengths = random.Random(seed)
    rows = []
    for chunk in STORE_CHUNKS:
        sample = [lengths.randint(max(1024, chunk + 1), 8192) for _ in range(prompts)]
        rules = [Stock()] + [
            Ours(f"ours, {n} a forward", Grid(snapshots=n, store_tokens=chunk))
            for n in (1, 2)
        ]
        shares = {rule.name: findable(rule, sample, chunk) for rule in rules}
        rows.append({"store_chunk": chunk, "prompts": prompts, "findable": shares})
    return rows


def planning_us(seed: int, forwards: int) -> dict[str, float]:
    """Time of all planner calls of one request and forward, in microseconds."""
    source, grid = random.Random(seed), Grid(store_tokens=256)
    samples = []
    for _ in range(forwards):
        prompt_len = source.randint(65, 100_000)
        hit_len = floor(source.randrange(prompt_len), PAGE_TOKENS)
        prefix_len = source.randrange(hit_len, prompt_len, PAGE_TOKENS)
        branch = source.choice((None, floor(source.randrange(prompt_len), 64)))
        started = time.perf_counter_ns()
        end = forward_end(
            grid,
            prefix_len=prefix_len,
            limit=prefix_len + 8192,
            prompt_len=prompt_len,
            branch=branch,
            hit_len=hit_len,
        )
        depths = plan(
            grid,
            prefix_len=prefix_len,
            end=end,
            prompt_len=prompt_len,
            branch=branch,
            hit_len=hit_len,
        )
        for depth in depths:
            may_publish(depth, depth, PAGE_TOKENS)
        samples.append((time.perf_counter_ns() - started) / 1e3)
    return {
        "median": round(statistics.median(samples), 2),
        "p99": round(statistics.quantiles(samples, n=100)[98], 2),
    }


def _measure(options: argparse.Namespace, progress: ProgressLine) -> dict[str, Any]:
    layout = build(read_model_config(CONFIG), ServerFacts(), origin=str(CONFIG))
    traces = {name: maker(options.seed) for name, maker in MADE_UP.items()}
    traces["retrieved passages"] = _retrieved_passages(options.seed)
    if options.trace:
        traces = {path.stem: read_trace(path, options.limit) for path in options.trace}
    results: dict[str, dict[str, Totals]] = {}
    everything: dict[str, Totals] = {}
    for name, requests in traces.items():
        progress(f"trace: {name}")
        results[name] = replay(requests, options.chunk_tokens)
        for rule, totals in results[name].items():
            everything.setdefault(rule, Totals()).add(totals)
    results[ALL] = everything
    rows = [
        _row(trace, rule, totals, by_rule[IDEAL], layout)
        for trace, by_rule in results.items()
        for rule, totals in by_rule.items()
    ]
    progress("prompts that a tier finds")
    found = findable_by_chunk(options.seed, prompts=400)
    progress("cost of planning")
    cost = planning_us(options.seed, forwards=50_000)
    missed = _missed(rows, found, cost)
    return {
        "benchmark": "boundaries",
        "ok": not missed,
        "targets_missed": missed,
        "machine": machine.describe(),
        "layout_id": layout.layout_id,
        "arguments": {
            "seed": options.seed,
            "chunk_tokens": options.chunk_tokens,
            "limit": options.limit,
            "traces": [path.name for path in options.trace] or "made up",
        },
        "rows": rows,
        "findable": found,
        "planning_us": cost,
    }


def _retrieved_passages(seed: int) -> Iterator[Request]:
    """The RAG workload of `benchmarks.radix_cache`: prompts part at every depth."""
    lengths = read_lengths(RAG, (), 1.0)
    turns = make(lengths, seed=seed, sessions=60, open_sessions=8)
    return (turn.request for turn in turns)


def _row(
    trace: str, rule: str, totals: Totals, ideal: Totals, layout: Layout
) -> dict[str, Any]:
    counted = {each.name: getattr(totals, each.name) for each in fields(totals)}
    best = max(ideal.reused_tokens, 1)
    return {
        "trace": trace,
        "rule": rule,
        **counted,
        "share_of_ideal": round(totals.reused_tokens / best, 5),
        "tier_share_of_ideal": round(totals.tier_reused_tokens / best, 5),
        "checkpoints_per_request": round(totals.checkpoints / totals.requests, 3),
        "forwards_per_request": round(totals.forwards / totals.requests, 3),
        "checkpoint_bytes": totals.checkpoints * layout.checkpoint_bytes,
        "page_bytes": totals.pages * layout.page_bytes,
        "tier_checkpoint_bytes": totals.tier_checkpoints * layout.checkpoint_bytes,
    }


def _missed(
    rows: Sequence[dict[str, Any]],
    found: Sequence[dict[str, Any]],
    cost: dict[str, float],
) -> list[str]:
    """Each target that the planner misses, in words."""
    missed = []
    stock = {row["trace"]: row for row in rows if row["rule"] == STOCK}
    for row in rows:
        if row["rule"] != OURS:
            continue
        trace = row["trace"]
        if trace == ALL and row["share_of_ideal"] < TARGET_SHARE:
            missed.append(f"{row['share_of_ideal']:.2%} of the ideal over all traces")
        if row["checkpoints_per_request"] > TARGET_CHECKPOINTS:
            missed.append(f"{row['checkpoints_per_request']} checkpoints in {trace}")
        if row["misplaced"]:
            missed.append(f"{row['misplaced']} states ahead of their key in {trace}")
        if row["reused_tokens"] < stock[trace]["reused_tokens"]:
            missed.append(f"less reusable than stock in {trace}")
    missed += [
        f"{rule} finds {share:.1%} with a store chunk of {row['store_chunk']}"
        for row in found
        for rule, share in row["findable"].items()
        if rule != STOCK and share < 1
    ]
    if cost["median"] >= TARGET_COST_US:
        missed.append(f"{cost['median']} µs to plan a forward")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    with ProgressLine() as progress:
        result = _measure(options, progress)
    (options.out / "boundaries.json").write_text(json.dumps(result, indent=2) + "\n")
    table = as_markdown(result)
    (options.out / "boundaries.md").write_text(table)
    draw(result, options.out / "boundaries.svg")
    print(table)
    return 0 if result["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.boundaries", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk-tokens", type=int, default=8192)
    parser.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        default=(),
        help="recorded traces instead of made-up ones (JSONL, see traces.py)",
    )
    parser.add_argument(
        "--limit", type=int, default=0, help="requests of each file; 0 for all"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
