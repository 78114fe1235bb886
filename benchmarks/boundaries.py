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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine
from benchmarks.real_shapes import CONFIG
from benchmarks.traces import MADE_UP, Request, Segment, page_keys, read_trace
from sglang_qsa.admission import Admission, Anchor
from sglang_qsa.boundary import (
    Grid,
    anchor,
    decode_depth,
    decode_interval,
    floor,
    forward_end,
    may_publish,
    plan,
)
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.geometry import PAGE_TOKENS, ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout

KERNEL_TOKENS = 64
STOCK_TRACK_INTERVAL = 256
STORE_CHUNKS = (64, 128, 256, 512, 1024)
IDEAL, STOCK, OURS = "ideal", "stock", "ours"
ALL = "all of these"

TARGET_SHARE = 0.99
TARGET_CHECKPOINTS = 3.0
TARGET_COST_US = 20.0


# -- rules -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """One prefill forward, as far as it is known when its end is chosen."""

    prefix_len: int
    limit: int
    """Where it ends if its budget alone decides."""
    prompt_len: int
    branch: int | None
    hit_len: int


class Rule(Protocol):
    """Where a forward ends, and which `(depth, key)` pairs it publishes."""

    name: str
    decode_interval: int
    store_grid: int

    def end(self, forward: Forward) -> int: ...

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]: ...


class Ideal:
    """A checkpoint at every page, as if checkpoints were free."""

    name = IDEAL
    decode_interval = PAGE_TOKENS
    store_grid = PAGE_TOKENS

    def end(self, forward: Forward) -> int:
        return min(floor(forward.limit, PAGE_TOKENS), forward.prompt_len)

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        first = floor(forward.prefix_len, PAGE_TOKENS) + PAGE_TOKENS
        return ((depth, depth) for depth in range(first, end + 1, PAGE_TOKENS))


class Stock:
    """SGLang 0.5.23 without DCP.

    Source: `PrefillAdder._select_prefill_admission` and `.add_chunked_req`,
    `ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend` and
    `UnifiedRadixCache.checkpoint_into_tree`.
    """

    name = STOCK
    decode_interval = STOCK_TRACK_INTERVAL
    store_grid = PAGE_TOKENS

    def end(self, forward: Forward) -> int:
        is_first = forward.prefix_len == forward.hit_len
        cut = floor(forward.limit, PAGE_TOKENS) if is_first else forward.limit
        return forward.prompt_len if forward.limit >= forward.prompt_len else cut

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        prefix_len, branch = forward.prefix_len, forward.branch
        if end - prefix_len < KERNEL_TOKENS:
            return
        depth = prefix_len + floor(end - prefix_len, KERNEL_TOKENS)
        in_reach = branch is not None and (branch - prefix_len) % KERNEL_TOKENS == 0
        if branch is not None and in_reach and prefix_len < branch < end:
            depth = branch
        yield depth, floor(depth, PAGE_TOKENS)


class Ours:
    """The planner."""

    def __init__(
        self,
        name: str,
        grid: Grid,
        *,
        track_interval: int = 1,
        may_split: bool = True,
    ) -> None:
        self.name = name
        self.decode_interval = decode_interval(grid, track_interval)
        self.store_grid = grid.store_grid
        self._grid = grid
        self._may_split = may_split

    def end(self, forward: Forward) -> int:
        return forward_end(
            self._grid,
            prefix_len=forward.prefix_len,
            limit=forward.limit,
            prompt_len=forward.prompt_len,
            branch=forward.branch,
            hit_len=forward.hit_len,
            may_split=self._may_split,
        )

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        depths = plan(
            self._grid,
            prefix_len=forward.prefix_len,
            end=end,
            prompt_len=forward.prompt_len,
            branch=forward.branch,
            hit_len=forward.hit_len,
        )
        return [(depth, depth) for depth in depths]


def compared_rules() -> list[Rule]:
    """Ideal, stock and ours; then what single parts of ours are worth."""
    two = Grid(snapshots=2)
    return [
        Ideal(),
        Stock(),
        Ours(OURS, two),
        Ours("ours, one snapshot a forward, split", Grid()),
        Ours("ours, one snapshot, never split", Grid(), may_split=False),
        Ours("ours without rungs", Grid(snapshots=2, rung_distances=())),
        Ours("ours, decode every 256", two, track_interval=STOCK_TRACK_INTERVAL),
        Ours("ours, store chunk 256", Grid(snapshots=2, store_tokens=256)),
    ]


# -- the model of a server -------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """What one rule did on one trace."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    misled_tokens: int = 0
    """Reused with a state ahead of its key, thus wrong; not in `reused_tokens`."""
    forwards: int = 0
    checkpoints: int = 0
    misplaced: int = 0
    """Checkpoints whose state is ahead of their key."""
    pages: int = 0
    tier_reused_tokens: int = 0
    """Reusable, were the device emptied before every request."""
    tier_checkpoints: int = 0
    not_kept: int = 0
    """Checkpoints that the admission rule refused or let go."""

    def add(self, other: Totals) -> None:
        for each in fields(self):
            total = getattr(self, each.name) + getattr(other, each.name)
            setattr(self, each.name, total)


@dataclass(slots=True)
class _Tier:
    """What is kept beyond the device, under the admission rule."""

    store_grid: int
    admission: Admission = field(default_factory=Admission)
    held: set[int] = field(default_factory=set)
    forks: set[int] = field(default_factory=set)

    def offer(self, keys: Sequence[int], depth: int, tokens: int, request: int) -> None:
        """Keep or refuse the checkpoint at `depth` of a request."""
        if depth % self.store_grid:
            return
        keys = keys[: depth // PAGE_TOKENS]
        fork = keys[-1] in self.forks
        verdict = self.admission.admit(
            keys[-1], tokens=tokens, request=request, fork=fork
        )
        if verdict.kept and keys[-1] not in self.held:
            self.held.add(keys[-1])
            path = [Anchor(k, k in self.forks) for k in keys if k in self.held]
            crowded = {anchor.key for anchor in self.admission.crowded(path)}
            self.held.difference_update(crowded)


class Replay:
    """A server with endless memory under one rule."""

    def __init__(self, rule: Rule, chunk_tokens: int) -> None:
        self.rule = rule
        self.states: set[int] = set()
        self._totals = Totals()
        self._chunk_tokens = chunk_tokens
        self._pages: set[int] = set()
        self._misplaced: set[int] = set()
        self._tier = _Tier(rule.store_grid)

    def serve(self, request: Request, keys: Sequence[int]) -> None:
        """Look up, prefill, decode and finish one request.

        Args:
            keys: of the whole pages of its prompt and answer together.
        """
        totals, prompt_len = self._totals, request.prompt_tokens
        totals.requests += 1
        totals.prompt_tokens += prompt_len
        usable = keys[: anchor(prompt_len, PAGE_TOKENS) // PAGE_TOKENS]
        cached = _leading(usable, self._pages)
        hit = _deepest(usable[:cached], self.states)
        if hit and usable[hit - 1] in self._misplaced:
            totals.misled_tokens += hit * PAGE_TOKENS
        else:
            totals.reused_tokens += hit * PAGE_TOKENS
        totals.tier_reused_tokens += _deepest(usable, self._tier.held) * PAGE_TOKENS
        branch = cached * PAGE_TOKENS if cached > hit else None
        if fork := floor(branch or 0, self.rule.store_grid):
            self._tier.forks.add(usable[fork // PAGE_TOKENS - 1])
        self._prefill(request, keys, hit * PAGE_TOKENS, branch)
        resumed_at = _deepest(usable, self.states) * PAGE_TOKENS
        if resumed_at:
            self._tier.offer(keys, resumed_at, prompt_len, totals.requests)
        self._decode(request, keys)

    def _prefill(
        self, request: Request, keys: Sequence[int], hit_len: int, branch: int | None
    ) -> None:
        prefix_len, prompt_len, number = hit_len, request.prompt_tokens, 0
        budgets = request.budgets or (self._chunk_tokens,)
        while prefix_len < prompt_len:
            limit = prefix_len + budgets[number % len(budgets)]
            forward = Forward(prefix_len, limit, prompt_len, branch, hit_len)
            end = self.rule.end(forward)
            for depth, key_len in sorted(self.rule.published(forward, end)):
                self._publish(keys, depth, key_len, prompt_len)
            prefix_len, number = end, number + 1
        self._totals.forwards += number

    def _decode(self, request: Request, keys: Sequence[int]) -> None:
        """Only the last snapshot is published, when the request ends."""
        before = request.prompt_tokens
        computed = before + max(request.answer.tokens - 1, 0)
        if isinstance(self.rule, Ideal):
            forward = Forward(before, computed, computed, None, before)
            for page, key_len in self.rule.published(forward, computed):
                self._publish(keys, page, key_len, computed)
            return
        depth = decode_depth(self.rule.decode_interval, before, computed)
        if depth is not None:
            self._publish(keys, depth, depth, computed)

    def _publish(
        self, keys: Sequence[int], depth: int, key_len: int, tokens: int
    ) -> None:
        keys = keys[: key_len // PAGE_TOKENS]
        self._pages.update(keys)
        if keys[-1] not in self.states:
            self.states.add(keys[-1])
            if not may_publish(depth, key_len, PAGE_TOKENS):
                self._misplaced.add(keys[-1])
        self._tier.offer(keys, key_len, tokens, self._totals.requests)

    def totals(self) -> Totals:
        totals = self._totals
        totals.checkpoints = len(self.states)
        totals.misplaced = len(self._misplaced)
        totals.pages = len(self._pages)
        totals.tier_checkpoints = len(self._tier.held)
        verdicts = self._tier.admission.verdicts
        totals.not_kept = sum(n for verdict, n in verdicts.items() if not verdict.kept)
        return totals


def _leading(keys: Sequence[int], known: set[int]) -> int:
    """How many keys from the first on are known."""
    return next((i for i, key in enumerate(keys) if key not in known), len(keys))


def _deepest(keys: Sequence[int], known: set[int]) -> int:
    """Pages up to the last key that is known; 0 without one."""
    return next((i for i in range(len(keys), 0, -1) if keys[i - 1] in known), 0)


def replay(requests: Iterable[Request], chunk_tokens: int) -> dict[str, Totals]:
    """One trace under every rule, by the name of the rule."""
    servers = [Replay(rule, chunk_tokens) for rule in compared_rules()]
    for request in requests:
        keys = page_keys((*request.prompt, request.answer), PAGE_TOKENS)
        for server in servers:
            server.serve(request, keys)
    return {server.rule.name: server.totals() for server in servers}


# -- what is measured ------------------------------------------------------------


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
    traces = {name: make(options.seed) for name, make in MADE_UP.items()}
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


# -- what is written -------------------------------------------------------------


def as_markdown(result: dict[str, Any]) -> str:
    """The result as tables, with what it was measured on."""
    facts, arguments = result["machine"], result["arguments"]
    rows, cost = result["rows"], result["planning_us"]
    main = [row for row in rows if row["rule"] in (IDEAL, STOCK, OURS)]
    parts = [row for row in rows if row["trace"] == ALL]
    lines = [
        "# Boundaries: what each checkpoint rule makes reusable",
        "",
        f"{facts['cpu']}, Python {facts['python']}, commit {facts['commit'][:12]}. "
        f"Prefill chunk {arguments['chunk_tokens']:,} tokens, seed "
        f"{arguments['seed']}, traces: {arguments['traces']}. One request after the "
        "other, nothing evicted. Ideal: a checkpoint at every page.",
        "",
        *_table(main, "trace", "rule"),
        "",
        "What the parts are worth, over all traces; stock takes one snapshot a "
        "forward:",
        "",
        *_table(parts, "rule"),
        "",
        "Beyond the device, after the admission rule, were the device emptied before "
        "every request:",
        "",
        "| rule | reusable, of the ideal | checkpoints | GB | not kept |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {row['rule']} | {row['tier_share_of_ideal']:.2%} "
            f"| {row['tier_checkpoints']:,} "
            f"| {row['tier_checkpoint_bytes'] / 1e9:,.0f} "
            f"| {row['not_kept']:,} |"
            for row in parts
            if row["rule"] != IDEAL
        ),
        "",
        "Prompts of random lengths up to 8,192 tokens that a tier finds at their last "
        "chunk below the end, of each "
        f"{result['findable'][0]['prompts']}:",
        "",
        "| store chunk | " + " | ".join(result["findable"][0]["findable"]) + " |",
        "|---:|---:|---:|---:|",
        *(
            f"| {row['store_chunk']} | "
            + " | ".join(f"{share:.1%}" for share in row["findable"].values())
            + " |"
            for row in result["findable"]
        ),
        "",
        f"Planning one forward of one request: median {cost['median']} µs, "
        f"99th percentile {cost['p99']} µs.",
        "",
        "Targets missed: " + ("; ".join(result["targets_missed"]) or "none") + ".",
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]], *names: str) -> list[str]:
    head = (
        *names,
        "reusable, M tokens",
        "of the ideal",
        "wrong, M tokens",
        "checkpoints a request",
        "forwards a request",
        "checkpoints, GB",
        "pages, GB",
    )
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(names) + "---:|" * (len(head) - len(names)),
    ]
    for row in rows:
        cells = (
            *(row[name] for name in names),
            f"{row['reused_tokens'] / 1e6:.2f}",
            f"{row['share_of_ideal']:.2%}",
            f"{row['misled_tokens'] / 1e6:.2f}",
            f"{row['checkpoints_per_request']:.2f}",
            f"{row['forwards_per_request']:.2f}",
            f"{row['checkpoint_bytes'] / 1e9:,.0f}",
            f"{row['page_bytes'] / 1e9:,.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(result: dict[str, Any], path: Path) -> None:
    """Ideal, stock and ours side by side, one group of bars for each trace."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "boundaries"
    from matplotlib import pyplot

    rows = result["rows"]
    names = list(dict.fromkeys(row["trace"] for row in rows))
    panels = (
        ("reusable tokens, % of the ideal", "share_of_ideal", 100),
        ("checkpoints per request", "checkpoints_per_request", 1),
        ("checkpoints, GB", "checkpoint_bytes", 1e-9),
    )
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(13, 1.5 + 0.6 * len(names)),
        sharey=True,
        layout="constrained",
    )
    colours = {IDEAL: "#b0b0b0", STOCK: "#d1605e", OURS: "#3a76af"}
    for axis, (title, fact, scale) in zip(axes, panels, strict=True):
        for place, (rule, colour) in enumerate(colours.items()):
            values = [row[fact] * scale for row in rows if row["rule"] == rule]
            heights = [trace + (place - 1) * 0.27 for trace in range(len(names))]
            bars = axis.barh(heights, values, 0.25, color=colour, label=rule)
            labels = [f"{value:,.1f}" for value in values]
            axis.bar_label(bars, labels, padding=2, fontsize=7)
        axis.set_title(title, fontsize=10)
        axis.spines["top"].set_visible(False)
        axis.spines["right"].set_visible(False)
        axis.margins(x=0.15)
    for axis in axes[1:]:
        axis.set_xscale("log")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


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
