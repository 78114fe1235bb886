"""What prefix caches are worth on a workload: one running server, or two compared.

    python -m benchmarks.radix_cache --url http://HOST:PORT --out DIR
        [--url-baseline http://HOST:PORT] [--workload chat|agent|rag|long_qa|mix]
        [--trace FILE] [--clients N] [--sessions N] [--set PART=LENGTHS] ...

Prompts are token ids, so the servers need no tokenizer. LENGTHS is N,
uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX. Reuse by tier is what the server says
of each request; evictions and bytes are its /metrics, before and after. Writes
radix_cache.json and radix_cache.html, also where a server dies in the middle (exit
code 2) or Ctrl-C ends the run (130): what was measured until then, marked as partial.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arguments import addresses
from benchmarks.drawing import require_library
from benchmarks.interrupts import INTERRUPTED
from benchmarks.progress import request_bar
from benchmarks.radix_cache import workloads
from benchmarks.radix_cache.client import Server
from benchmarks.radix_cache.options import as_arguments, check_turns, parse, round_turns
from benchmarks.radix_cache.page import as_page
from benchmarks.radix_cache.result import document
from benchmarks.radix_cache.run import Plan, Side, run
from benchmarks.radix_cache.samples import read_facts
from benchmarks.radix_cache.tokens import Tokens
from sglang_qsa.errors import REFUSED, QsaError

TIER_UNUSED = 1


@dataclass(slots=True)
class _State:
    """What a run that is cut off has to leave behind."""

    sides: list[Side] = field(default_factory=list)
    wanted_requests: int = 0
    left_out: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv, __doc__ or "")
    state, stopped, code = _State(), "", 0
    try:
        require_library()
        turns = _turns(options)
        options.out.mkdir(parents=True, exist_ok=True)
        asyncio.run(_measure(options, turns, state))
    except (QsaError, OSError) as error:
        stopped, code = str(error), REFUSED
    except KeyboardInterrupt:
        stopped, code = "interrupted", INTERRUPTED
    result = None
    if any(side.samples for side in state.sides):
        result = _save(options, state, stopped)
    if stopped:
        kept = f"; partial result in {options.out}" if result else ""
        print(f"{stopped}{kept}", file=sys.stderr)
        return code
    assert result is not None
    print(_told(result, options))
    return _unused_tiers(options, result)


def _turns(options: argparse.Namespace) -> list[workloads.Turn]:
    if options.trace:
        turns = workloads.from_trace(
            options.trace, options.requests or 0, options.scale
        )
    else:
        lengths = workloads.read_lengths(options.workload, options.set, options.scale)
        turns = workloads.make(
            lengths,
            seed=options.seed,
            sessions=options.sessions,
            open_sessions=options.open_sessions,
        )
    return turns[: options.requests]


async def _measure(
    options: argparse.Namespace, turns: list[workloads.Turn], state: _State
) -> None:
    named = addresses(options)
    servers = [Server(url, options.timeout_s) for _, url in named]
    try:
        for (name, _), server in zip(named, servers, strict=True):
            facts = read_facts(await server.info())
            state.sides.append(Side(name, server, facts))
        most = min(side.facts.most_tokens for side in state.sides)
        fitting = workloads.fitting(turns, most)
        check_turns(len(turns), len(fitting), most)
        state.wanted_requests = len(fitting) * options.passes
        state.left_out = len(turns) - len(fitting)
        plan = _plan(options, fitting)
        total = state.wanted_requests * len(servers)
        with request_bar(total) as bar:

            def on_answer(side: Side) -> None:
                bar.set_postfix_str(side.name, refresh=False)
                bar.update()

            await run(plan, state.sides, on_answer)
    finally:
        for server in servers:
            await server.close()


def _plan(options: argparse.Namespace, turns: list[workloads.Turn]) -> Plan:
    return Plan(
        turns=turns,
        tokens=Tokens(options.seed, options.vocabulary),
        clients=options.clients,
        round_turns=round_turns(options, len(turns)),
        passes=options.passes,
        flush=options.flush,
        own_answers=options.answers == "own",
        settle_s=options.settle_s,
        warm_up=options.warm_up,
    )


def _save(options: argparse.Namespace, state: _State, stopped: str) -> dict[str, Any]:
    result = document(
        as_arguments(options),
        state.sides,
        wanted_requests=state.wanted_requests,
        left_out=state.left_out,
        stopped=stopped,
    )
    text = json.dumps(result, indent=1) + "\n"
    (options.out / "radix_cache.json").write_text(text)
    (options.out / "radix_cache.html").write_text(as_page(result))
    return result


def _told(result: dict[str, Any], options: argparse.Namespace) -> str:
    lines = []
    for server in result["servers"]:
        summary = server["summary"]
        tiers = ", ".join(
            f"{source} {tokens / summary['prompt_tokens']:.1%}"
            for source, tokens in summary["tokens_by_source"].items()
            if tokens
        )
        lines.append(
            f"{server['name']}: {summary['requests']:,} requests, {tiers}; "
            f"TTFT p50 {1e3 * summary['ttft_s']['p50']:.1f} ms, "
            f"p99 {1e3 * summary['ttft_s']['p99']:.1f} ms; "
            f"{summary['answer_tokens_per_s']:.1f} answer tokens/s"
        )
    lines.append(f"{options.out / 'radix_cache.html'}")
    return "\n".join(lines)


def _unused_tiers(options: argparse.Namespace, result: dict[str, Any]) -> int:
    served = result["servers"][0]["summary"]["tokens_by_source"]
    unused = [tier for tier in options.require_tier if not served[tier]]
    for tier in unused:
        print(
            f"{options.url}: found 0 tokens from tier {tier}; wanted some "
            "(--require-tier); see the report for what served",
            file=sys.stderr,
        )
    return TIER_UNUSED if unused else 0
