"""What is sent: conversations as lengths and shared parts, in the order of sending.

A workload is a function of its seed. Requests of one session come in order; between
them come those of all other open sessions, so that a prefix has to be kept until its
next turn. Segments with equal ids are equal tokens (`benchmarks.traces`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.radix_cache.lengths import Lengths
from benchmarks.traces import Request, Segment, read_trace
from sglang_qsa.errors import ConfigError, refusal

CHAT, AGENT, RAG, LONG_QA, MIX = "chat", "agent", "rag", "long_qa", "mix"
ONE_OFF, TRACE = "one_off", "trace"

DEFAULTS: dict[str, dict[str, str]] = {
    CHAT: {
        "system": "700",
        "user": "lognormal:150:0.8:4000",
        "answer": "lognormal:350:0.8:3000",
        "turns": "uniform:4:12",
    },
    AGENT: {
        "tools": "uniform:3000:14000",
        "task": "lognormal:250:0.8:900",
        "call": "lognormal:120:0.8:900",
        "result": "lognormal:500:0.8:6000",
        "agents": "3",
        "turns": "uniform:6:20",
    },
    RAG: {
        "system": "420",
        "passage": "uniform:300:900",
        "question": "lognormal:60:0.8:600",
        "answer": "lognormal:250:0.8:1200",
        "passages": "60",
        "retrieved": "6",
        "turns": "uniform:4:12",
    },
    LONG_QA: {
        "system": "420",
        "document": "lognormal:24000:0.8:110000",
        "question": "lognormal:60:0.8:600",
        "answer": "lognormal:250:0.8:1200",
        "turns": "uniform:4:12",
    },
    ONE_OFF: {
        "prompt": "uniform:65:16000",
        "answer": "lognormal:100:0.8:1000",
        "turns": "1",
    },
}
"""Tokens of each part, and the counts of `_COUNTS`."""

_COUNTS = frozenset({"agents", "passages", "retrieved", "turns"})
WORKLOADS = (*(name for name in DEFAULTS if name != ONE_OFF), MIX)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, with the workload and the session that it belongs to."""

    kind: str
    session: int
    request: Request

    @property
    def tokens(self) -> int:
        """Of prompt and answer."""
        return self.request.prompt_tokens + self.request.answer.tokens


@dataclass(frozen=True, slots=True)
class Parts:
    """Random lengths and fresh segments of one workload."""

    name: str
    source: random.Random
    lengths: Mapping[str, Lengths]
    numbers: Iterator[int]

    def draw(self, part: str) -> int:
        return self.lengths[part].draw(self.source)

    def fresh(self, part: str) -> Segment:
        id = f"{self.name}/{part}/{next(self.numbers)}"
        return Segment(id, self.draw(part))


Session = list[Request]


def read_lengths(
    workload: str, overrides: Sequence[str], scale: float
) -> dict[str, dict[str, Lengths]]:
    """Lengths of each workload that `workload` consists of.

    Args:
        overrides: `PART=LENGTHS`, for the mix `WORKLOAD.PART=LENGTHS`.
        scale: of all token counts; the counts of `_COUNTS` stay.

    Raises:
        ConfigError: an unknown part, or lengths that cannot be read.
    """
    names = tuple(DEFAULTS) if workload == MIX else (workload,)
    texts = {
        f"{name}.{part}": s for name in names for part, s in DEFAULTS[name].items()
    }
    for override in overrides:
        key, _, text = override.partition("=")
        full = key if "." in key else f"{workload}.{key}"
        if full not in texts:
            raise ConfigError(
                refusal(
                    found=repr(override),
                    wanted="one of " + ", ".join(texts),
                    origin="--set",
                    way_out="write for example --set "
                    f"{next(iter(texts))}=uniform:100:900",
                )
            )
        texts[full] = text
    found: dict[str, dict[str, Lengths]] = {name: {} for name in names}
    for full, text in texts.items():
        name, _, part = full.partition(".")
        lengths = Lengths.parse(text, f"--set {full}")
        found[name][part] = lengths if part in _COUNTS else lengths.scaled(scale)
    return found


def make(
    lengths: Mapping[str, Mapping[str, Lengths]],
    *,
    seed: int,
    sessions: int,
    open_sessions: int,
) -> list[Turn]:
    """All turns of `sessions` sessions, divided evenly between the workloads.

    Args:
        open_sessions: how many sessions take turns with each other at a time.
    """
    made: list[tuple[str, Session]] = []
    for place, (name, parts) in enumerate(lengths.items()):
        own = sessions // len(lengths) + (place < sessions % len(lengths))
        source = random.Random(f"{name} {seed}")
        maker = _MAKERS[name](Parts(name, source, parts, count()))
        made += ((name, next(maker)) for _ in range(own))
    source = random.Random(f"order {seed}")
    source.shuffle(made)
    return _interleaved(made, open_sessions, source)


def from_trace(path: Path, limit: int, scale: float) -> list[Turn]:
    """The requests of a trace file in its order, all segments `scale` times as long.

    Raises:
        ConfigError: the file is missing, or a line is no request.
    """
    try:
        requests = list(read_trace(path, limit))
    except (OSError, ValueError) as error:
        raise ConfigError(
            refusal(
                found=str(error),
                wanted="one JSON object a line with input_length, output_length and "
                "hash_ids, or with prompt and answer",
                origin=f"--trace {path}",
                way_out="benchmarks/traces.py shows both forms",
            )
        ) from error
    return [
        Turn(TRACE, number, _scaled(request, scale))
        for number, request in enumerate(requests)
    ]


def fitting(turns: Sequence[Turn], most_tokens: int) -> list[Turn]:
    """Without the turns whose prompt and answer exceed `most_tokens`."""
    return [turn for turn in turns if turn.tokens <= most_tokens]


def _interleaved(
    sessions: Sequence[tuple[str, Session]], open_sessions: int, source: random.Random
) -> list[Turn]:
    waiting = [
        (name, number, iter(session)) for number, (name, session) in enumerate(sessions)
    ][::-1]
    live: list[tuple[str, int, Iterator[Request]]] = []
    turns: list[Turn] = []
    while waiting or live:
        while waiting and len(live) < open_sessions:
            live.append(waiting.pop())
        at = source.randrange(len(live))
        name, number, session = live[at]
        request = next(session, None)
        if request is None:
            del live[at]
        else:
            turns.append(Turn(name, number, request))
    return turns


def _scaled(request: Request, scale: float) -> Request:
    def shorter(segment: Segment) -> Segment:
        return Segment(segment.id, max(int(segment.tokens * scale), 1))

    return Request(tuple(map(shorter, request.prompt)), shorter(request.answer))


def _chat(parts: Parts) -> Iterator[Session]:
    """Multi-turn chat: one system prompt; each turn sends the history so far."""
    system = parts.fresh("system")
    while True:
        history, session = [system], []
        for _ in range(parts.draw("turns")):
            history.append(parts.fresh("user"))
            answer = parts.fresh("answer")
            session.append(Request(tuple(history), answer))
            history.append(answer)
        yield session


def _agent(parts: Parts) -> Iterator[Session]:
    """Agent loops: a tools prompt shared by all tasks of an agent; many short calls."""
    tools = [parts.fresh("tools") for _ in range(parts.draw("agents"))]
    while True:
        history, session = [parts.source.choice(tools), parts.fresh("task")], []
        for _ in range(parts.draw("turns")):
            call = parts.fresh("call")
            session.append(Request(tuple(history), call))
            history += [call, parts.fresh("result")]
        yield session


def _rag(parts: Parts) -> Iterator[Session]:
    """RAG over one long document: each question brings some of its passages.

    The i-th passage is asked for with a weight of 1/i; passages come in the order of
    the document, so what two prompts share ends at the first other passage.
    """
    system = parts.fresh("system")
    document = [parts.fresh("passage") for _ in range(parts.draw("passages"))]
    weights = [1 / place for place in range(1, len(document) + 1)]
    while True:
        session = []
        for _ in range(parts.draw("turns")):
            wanted = min(parts.draw("retrieved"), len(document))
            found: set[int] = set()
            while len(found) < wanted:
                found.update(parts.source.choices(range(len(document)), weights))
            passages = (document[place] for place in sorted(found))
            prompt = (system, *passages, parts.fresh("question"))
            session.append(Request(prompt, parts.fresh("answer")))
        yield session


def _long_qa(parts: Parts) -> Iterator[Session]:
    """Long-document Q&A: a session is one document, with independent questions."""
    system = parts.fresh("system")
    while True:
        document = parts.fresh("document")
        yield [
            Request((system, document, parts.fresh("question")), parts.fresh("answer"))
            for _ in range(parts.draw("turns"))
        ]


def _one_off(parts: Parts) -> Iterator[Session]:
    """Prompts that share nothing with any other."""
    while True:
        yield [
            Request((parts.fresh("prompt"),), parts.fresh("answer"))
            for _ in range(parts.draw("turns"))
        ]


_MAKERS: dict[str, Callable[[Parts], Iterator[Session]]] = {
    CHAT: _chat,
    AGENT: _agent,
    RAG: _rag,
    LONG_QA: _long_qa,
    ONE_OFF: _one_off,
}
