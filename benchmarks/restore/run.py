"""Send each prompt cold, again, restored and again, to one server or two in turns.

While one server is measured the other is idle, so that they may share a machine. Who
comes first changes from length to length and from repeat to repeat, and whatever
drifts meets both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.radix_cache.client import Server
from benchmarks.radix_cache.samples import Facts, sources_of
from benchmarks.radix_cache.tokens import Tokens
from benchmarks.restore import moved
from benchmarks.restore.between import EVICT, evict
from benchmarks.restore.samples import (
    COLD,
    HIT,
    HIT_AFTER,
    RESTORED,
    STEPS,
    Answer,
    Sample,
)
from benchmarks.traces import Segment

OnStep = Callable[[str, int], None]
"""Gets what happens now, and the requests answered since the call before."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent, and how."""

    lengths: Sequence[int]
    """Of the prefixes, in tokens."""
    tail_tokens: int
    answer_tokens: int
    repeats: int
    warm_up: int
    """Repeats before them, with other tokens, that are not kept."""
    between: str
    settle_s: float
    tokens: Tokens

    @property
    def requests(self) -> int:
        """Of each server, without those that evict."""
        return len(self.lengths) * (self.repeats + self.warm_up) * len(STEPS)

    def rounds(self) -> Iterator[tuple[int, int, bool]]:
        """Repeat, length, and whether the second server comes first."""
        for repeat in range(-self.warm_up, self.repeats):
            for place, length in enumerate(self.lengths):
                yield repeat, length, bool((repeat + place) % 2)

    def prompt(self, repeat: int, length: int) -> list[int]:
        tokens = length + self.tail_tokens
        return self.tokens.of(Segment(f"{repeat}/{length}", tokens))


@dataclass(slots=True)
class Side:
    """One of the compared servers, with what has been measured so far."""

    name: str
    server: Server
    facts: Facts
    capacity_tokens: int | None = None
    """Of the device; None where nothing is evicted."""
    samples: list[Sample] = field(default_factory=list)


async def run(plan: Plan, sides: Sequence[Side], on_step: OnStep) -> None:
    """Measure every length as often as planned; samples end up in the sides.

    Raises:
        ServerFailed: a server is gone or refused a request; what was measured before
            is kept, the sample that it broke off included.
    """
    for repeat, length, swapped in plan.rounds():
        for side in sides[:: -1 if swapped else 1]:
            sample = Sample(length, repeat)
            if repeat >= 0:
                side.samples.append(sample)
            await _Cycle(plan, side, sample, on_step).run()


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The requests of one sample, in order."""

    plan: Plan
    side: Side
    sample: Sample
    on_step: OnStep

    async def run(self) -> None:
        server, answer_tokens = self.side.server, self.plan.answer_tokens
        prompt = self.plan.prompt(self.sample.repeat, self.sample.length_tokens)
        before = await server.counters()
        await self._ask(COLD, prompt, 1)
        await self._ask(HIT, prompt, answer_tokens)
        self._say("backup")
        self.sample.settled_s = await moved.settle(
            server, self.side.facts.tiers, before, self.plan.settle_s
        )
        await self._empty()
        before = await server.counters()
        await self._ask(RESTORED, prompt, answer_tokens)
        self.sample.loaded_bytes = await moved.loaded_bytes(server, before)
        await self._ask(HIT_AFTER, prompt, answer_tokens)

    async def _ask(self, step: str, prompt: list[int], answer_tokens: int) -> None:
        self._say(step)
        got = await self.side.server.generate(prompt, answer_tokens)
        sources = sources_of(got.meta, self.side.facts.tier_of)
        self.sample.answers[step] = Answer(
            ttft_s=got.ttft_s,
            sources={source: tokens for source, tokens in sources.items() if tokens},
            output_ids=tuple(got.output_ids),
        )
        self._say(step, 1)

    async def _empty(self) -> None:
        if self.plan.between != EVICT:
            self._say("flush")
            await self.side.server.flush()
            return
        assert self.side.capacity_tokens is not None
        await evict(
            self.side.server,
            self.plan.tokens,
            f"{self.sample.repeat}/{self.sample.length_tokens}",
            capacity=self.side.capacity_tokens,
            most_tokens=self.side.facts.most_tokens,
            on_sent=lambda sent, of: self._say(f"evicting, {sent:,} of {of:,} tokens"),
        )

    def _say(self, what: str, answered: int = 0) -> None:
        length = f"{self.sample.length_tokens:,} tokens"
        self.on_step(f"{self.side.name}, {length}: {what}", answered)
