"""Send the turns to one server or two, round by round, and keep what was measured.

Servers take turns: a round goes to one with all clients, then to the other, and the
next round the other way round. While one is measured the other is idle, so that they
may share a machine, and whatever drifts meets both.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from benchmarks.radix_cache.client import Server, ServerFailed, Streamed
from benchmarks.radix_cache.samples import Facts, Sample, sources_of
from benchmarks.radix_cache.tokens import Tokens, reusable
from benchmarks.radix_cache.workloads import Turn

OnAnswer = Callable[["Side"], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent, and how."""

    turns: Sequence[Turn]
    tokens: Tokens
    clients: int
    round_turns: int
    passes: int = 1
    flush: str = "never"
    """`start`: before the first pass; `pass`: before each."""
    own_answers: bool = True
    """A server's answers become part of its next prompts, not made-up ones."""
    settle_s: float = 1.0
    """Pause before the last look at the counters: backups end after their request."""
    warm_up: int = 0
    """Turns that are sent before, with other tokens."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The server's counters at a moment of its clock."""

    at_s: float
    requests: int
    counters: dict[str, float]


@dataclass(slots=True)
class Side:
    """One of the compared servers, with what has been measured so far."""

    name: str
    server: Server
    facts: Facts
    samples: list[Sample] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    clock_s: float = 0.0
    """Time for which this server was measured."""
    answers: dict[str, list[int]] = field(default_factory=dict)

    async def mark(self) -> None:
        counters = await self.server.counters()
        self.marks.append(Mark(self.clock_s, len(self.samples), counters))


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    repeat: int
    reusable_tokens: int
    turn: Turn


async def run(plan: Plan, sides: Sequence[Side], on_answer: OnAnswer) -> None:
    """Send every turn of every pass to every side; samples end up in the sides.

    Raises:
        ServerFailed: a server is gone or refused a request; what was measured before
            is kept.
    """
    for side in sides:
        await _warm_up(plan, side)
        if plan.flush == "start":
            await side.server.flush()
        await side.mark()
    for round_number, (is_first, turns) in enumerate(_rounds(plan)):
        for side in sides[:: -1 if round_number % 2 else 1]:
            if is_first and plan.flush == "pass":
                await side.server.flush()
            await _serve(plan, side, turns, on_answer)
            await side.mark()
    await asyncio.sleep(plan.settle_s)
    for side in sides:
        await side.mark()


def _rounds(plan: Plan) -> Iterator[tuple[bool, list[_Numbered]]]:
    """The rounds of all passes; True for the first one of a pass."""
    most = reusable([turn for _ in range(plan.passes) for turn in plan.turns])
    for repeat in range(plan.passes):
        start = repeat * len(plan.turns)
        numbered = [
            _Numbered(start + at, repeat, most[start + at], turn)
            for at, turn in enumerate(plan.turns)
        ]
        for at in range(0, len(numbered), plan.round_turns):
            yield at == 0, numbered[at : at + plan.round_turns]


async def _warm_up(plan: Plan, side: Side) -> None:
    """The first turns as they will be sent, with other tokens; nothing is measured.

    A GPU server compiles kernels for shapes that it meets for the first time, such as
    those of several prompts at once or of prompts that resume.
    """
    others = replace(plan, tokens=plan.tokens.others())
    turns = [_Numbered(at, 0, 0, turn) for at, turn in enumerate(plan.turns)]
    thrown_away = Side(side.name, side.server, side.facts)
    await _serve(others, thrown_away, turns[: plan.warm_up], lambda _: None)


async def _serve(
    plan: Plan, side: Side, turns: list[_Numbered], on_answer: OnAnswer
) -> None:
    plan.tokens.prepare(numbered.turn for numbered in turns)
    zero = time.perf_counter() - side.clock_s
    waiting = iter(turns)
    answered: dict[str, asyncio.Event] = {}

    async def client() -> None:
        for numbered in waiting:
            request = numbered.turn.request
            before = [answered.get(segment.id) for segment in request.prompt]
            done = answered[request.answer.id] = asyncio.Event()
            for event in filter(None, before):
                await event.wait()
            ids = plan.tokens.prompt(numbered.turn, side.answers)
            started_s = time.perf_counter() - zero
            streamed = await side.server.generate(ids, request.answer.tokens)
            if plan.own_answers:
                side.answers.setdefault(request.answer.id, streamed.output_ids)
            side.samples.append(_sample(numbered, side, ids, started_s, streamed))
            done.set()
            on_answer(side)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.clients):
                group.create_task(client())
    except BaseExceptionGroup as failed:
        found = failed.subgroup(ServerFailed)
        if found is None:
            raise
        raise found.exceptions[0] from failed
    finally:
        side.clock_s = time.perf_counter() - zero


def _sample(
    numbered: _Numbered, side: Side, ids: list[int], started_s: float, got: Streamed
) -> Sample:
    return Sample(
        number=numbered.number,
        repeat=numbered.repeat,
        kind=numbered.turn.kind,
        session=numbered.turn.session,
        prompt_tokens=len(ids),
        answer_tokens=numbered.turn.request.answer.tokens,
        reusable_tokens=numbered.reusable_tokens,
        sources=sources_of(got.meta, side.facts.tier_of),
        started_s=started_s,
        ttft_s=got.ttft_s,
        seconds=got.seconds,
        gaps=got.gaps,
        prompt_digest=_digest(ids),
        output_digest=_digest(got.output_ids),
        retractions=got.meta.get("num_retractions") or 0,
    )


def _digest(ids: list[int]) -> int:
    return crc32(array("I", ids).tobytes())
