"""TTFT and restore latency by prefix length and tier, of one running server or two.

    python -m benchmarks.restore --url http://HOST:PORT --out DIR
        [--url-baseline http://HOST:PORT] [--prompt-tokens N ...] [--repeats N]
        [--between flush|evict]

Each prompt is sent cold, again (a device hit), again after the device was emptied
(restored from the tier) and again. A restore is what the third takes longer than the
fourth: both compute the same tokens after the same boundary. The servers' own report
has to say that the tier served the third (or exit code 1), and the answers have to be
equal (or 1). Beside it: the time of one plain copy of as many pinned bytes to the GPU
of this machine. Prompts are token ids, so the servers need no tokenizer; bytes need
their --enable-metrics. Writes restore.json, restore.md and restore.svg, also where a
server dies in the middle (exit code 2) or Ctrl-C ends the run (130): what was measured
until then, marked as partial.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.arguments import addresses
from benchmarks.drawing import require_library
from benchmarks.interrupts import INTERRUPTED
from benchmarks.progress import request_bar
from benchmarks.radix_cache.client import Server
from benchmarks.radix_cache.samples import read_facts
from benchmarks.radix_cache.tokens import Tokens
from benchmarks.restore.between import EVICT, capacity_tokens
from benchmarks.restore.faults import UNSERVED
from benchmarks.restore.options import as_arguments, parse
from benchmarks.restore.plot import draw
from benchmarks.restore.report import as_markdown
from benchmarks.restore.result import document
from benchmarks.restore.run import Plan, Side, run
from sglang_qsa.errors import REFUSED, ConfigError, QsaError, refusal

FAULTY = 1


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv, __doc__ or "")
    sides: list[Side] = []
    stopped, code = "", 0
    try:
        require_library()
        options.out.mkdir(parents=True, exist_ok=True)
        asyncio.run(_measure(options, sides))
    except (QsaError, OSError) as error:
        stopped, code = str(error), REFUSED
    except KeyboardInterrupt:
        stopped, code = "interrupted", INTERRUPTED
    result = None
    if any(sample.answers for side in sides for sample in side.samples):
        result = _save(options, sides, stopped)
    if stopped:
        kept = f"; partial result in {options.out}" if result else ""
        print(f"{stopped}{kept}", file=sys.stderr)
        return code
    assert result is not None
    print((options.out / "restore.md").read_text())
    return _faulty(result, options.require_tier)


async def _measure(options: argparse.Namespace, sides: list[Side]) -> None:
    named = addresses(options)
    servers = [Server(url, options.timeout_s) for _, url in named]
    plan = _plan(options)
    try:
        for (name, _), server in zip(named, servers, strict=True):
            sides.append(await _side(plan, name, server))
        with request_bar(plan.requests * len(servers)) as bar:

            def on_step(what: str, answered: int) -> None:
                bar.set_postfix_str(what, refresh=sys.stderr.isatty())
                bar.update(answered)

            await run(plan, sides, on_step)
    finally:
        for server in servers:
            await server.close()


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        lengths=options.prompt_tokens,
        tail_tokens=options.tail_tokens,
        answer_tokens=options.answer_tokens,
        repeats=options.repeats,
        warm_up=options.warm_up,
        between=options.between,
        settle_s=options.settle_s,
        tokens=Tokens(options.seed, options.vocabulary),
    )


async def _side(plan: Plan, name: str, server: Server) -> Side:
    """The server and what it says of itself.

    Raises:
        ConfigError: it takes no prompt of some length, or does not say how much its
            device holds.
    """
    info = await server.info()
    facts = read_facts(info)
    most = facts.most_tokens - plan.tail_tokens - plan.answer_tokens
    if too_long := [length for length in plan.lengths if length > most]:
        raise ConfigError(
            refusal(
                found=f"--prompt-tokens {' '.join(map(str, too_long))}",
                wanted=f"at most {most}, with {plan.tail_tokens} tokens behind it and "
                f"{plan.answer_tokens} of the answer",
                origin=f"{server.url}/server_info",
                way_out="leave them out, or give the server more --max-total-tokens "
                "and --context-length",
            )
        )
    evicting = plan.between == EVICT
    capacity = capacity_tokens(info, server.url) if evicting else None
    return Side(name, server, facts, capacity)


def _save(
    options: argparse.Namespace, sides: Sequence[Side], stopped: str
) -> dict[str, Any]:
    result = document(as_arguments(options), sides, stopped)
    (options.out / "restore.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "restore.md").write_text(as_markdown(result))
    (options.out / "restore.svg").write_text(draw(result))
    return result


def _faulty(result: dict[str, Any], require_tier: bool) -> int:
    found = [
        fault["text"]
        for fault in result["faults"]
        if require_tier or fault["kind"] != UNSERVED
    ]
    for text in found:
        print(text, file=sys.stderr)
    return FAULTY if found else 0
