"""Requests as lengths and shared parts: what a prefix cache sees of a workload.

A prompt is a row of segments; equal ids mean equal tokens. The made-up traces are
functions of their seed. A trace file has one JSON object a line, in one of two forms:

    {"prompt": [["system", 900], ["user-1", 80]], "answer": ["answer-1", 250]}
    {"input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}

The second is that of the traces published with Mooncake (FAST '25): each id stands for
512 tokens and all before them. What was answered is not in it, only its length.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

HASHED_TOKENS = 512
_TEMPLATE_TAIL = 5
"""Tokens that end a prompt and are not in the history of the next one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`tokens` tokens that are equal wherever this id appears."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload."""

    prompt: tuple[Segment, ...]
    answer: Segment
    budgets: tuple[int, ...] = ()
    """Tokens that its forwards may take in turn; empty for the server's chunk."""

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.prompt)


def page_keys(segments: tuple[Segment, ...], page_tokens: int) -> list[int]:
    """One key for each whole page, made of its tokens and of all pages before it."""
    keys: list[int] = []
    key, pieces, filled = 0, [], 0
    for segment in segments:
        offset = 0
        while offset < segment.tokens:
            taken = min(segment.tokens - offset, page_tokens - filled)
            pieces.append((segment.id, offset, taken))
            offset += taken
            filled += taken
            if filled == page_tokens:
                key = hash((key, tuple(pieces)))
                keys.append(key)
                pieces, filled = [], 0
    return keys


class _Maker:
    """Random lengths and fresh segments of one trace."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(f"{name} {seed}")
        self._numbers = count()

    def tokens(self, median: int, low: int, high: int, spread: float = 0.8) -> int:
        drawn = int(self.random.lognormvariate(0, spread) * median)
        return min(max(drawn, low), high)

    def fresh(self, tokens: int) -> Segment:
        return Segment(f"s{next(self._numbers)}", tokens)

    def interleaved(self, sessions: list[list[Request]]) -> Iterator[Request]:
        """One request after the other, from sessions in random order."""
        waiting = [iter(session) for session in sessions]
        while waiting:
            session = self.random.choice(waiting)
            request = next(session, None)
            if request is None:
                waiting.remove(session)
            else:
                yield request


def chat(seed: int) -> Iterator[Request]:
    """Multi-turn chat; each turn sends the whole history with the answers."""
    maker = _Maker("chat", seed)
    system = maker.fresh(700)
    sessions = []
    for _ in range(60):
        history, turns = [system], []
        for _ in range(maker.random.randint(4, 16)):
            history.append(maker.fresh(maker.tokens(150, 8, 4_000)))
            answer = maker.fresh(maker.tokens(350, 10, 3_000))
            turns.append(Request(tuple(history), answer))
            history.append(answer)
        sessions.append(turns)
    return maker.interleaved(sessions)


def reasoning_chat(seed: int) -> Iterator[Request]:
    """The same, but a turn's reasoning and template tail leave the history."""
    maker = _Maker("reasoning chat", seed)
    system = maker.fresh(700)
    sessions = []
    for _ in range(60):
        history, turns = [system], []
        for _ in range(maker.random.randint(4, 16)):
            history.append(maker.fresh(maker.tokens(150, 8, 4_000)))
            tail = maker.fresh(_TEMPLATE_TAIL)
            thought = maker.fresh(maker.tokens(900, 30, 8_000))
            turns.append(Request((*history, tail), thought))
            history.append(maker.fresh(maker.tokens(350, 10, 3_000)))
        sessions.append(turns)
    return maker.interleaved(sessions)


def agents(seed: int) -> Iterator[Request]:
    """Three agents with a system prompt each; sessions of many tool calls."""
    maker = _Maker("agents", seed)
    systems = [maker.fresh(tokens) for tokens in (3_171, 7_419, 14_093)]
    sessions = []
    for _ in range(45):
        history = [
            maker.random.choice(systems),
            maker.fresh(maker.tokens(250, 20, 900)),
        ]
        steps = []
        for _ in range(maker.random.randint(6, 30)):
            call = maker.fresh(maker.tokens(120, 20, 900))
            steps.append(Request(tuple(history), call))
            history += [call, maker.fresh(maker.tokens(500, 20, 6_000))]
        sessions.append(steps)
    return maker.interleaved(sessions)


def documents(seed: int) -> Iterator[Request]:
    """Questions about one long document each, over three documents."""
    maker = _Maker("documents", seed)
    system = maker.fresh(420)
    sessions = []
    for tokens in (18_211, 47_903, 110_377):
        document = maker.fresh(tokens)
        sessions.append(
            [
                Request(
                    (system, document, maker.fresh(maker.tokens(60, 12, 600))),
                    maker.fresh(maker.tokens(250, 10, 1_200)),
                )
                for _ in range(60)
            ]
        )
    return maker.interleaved(sessions)


def random_lengths(seed: int) -> Iterator[Request]:
    """Prompts of 65 to 16,000 tokens without anything shared, each sent twice."""
    maker = _Maker("random lengths", seed)
    return _sent_twice(maker, [maker.random.randint(65, 16_000) for _ in range(300)])


def exact_multiples(seed: int) -> Iterator[Request]:
    """Prompts of 64·k tokens, each sent twice."""
    maker = _Maker("exact multiples", seed)
    return _sent_twice(maker, [64 * k for k in (*range(2, 65), *range(80, 257, 16))])


def short_of_memory(seed: int) -> Iterator[Request]:
    """Long prompts whose chunks end wherever memory ends, each sent twice."""
    maker = _Maker("short of memory", seed)
    for _ in range(60):
        prompt = (maker.fresh(maker.random.randint(4_000, 24_000)),)
        budgets = tuple(maker.random.randint(700, 8_192) for _ in range(5))
        for _ in range(2):
            yield Request(prompt, maker.fresh(30), budgets)


def _sent_twice(maker: _Maker, lengths: list[int]) -> Iterator[Request]:
    for tokens in lengths:
        prompt = (maker.fresh(tokens),)
        yield Request(prompt, maker.fresh(30))
        yield Request(prompt, maker.fresh(30))


MADE_UP: dict[str, Callable[[int], Iterator[Request]]] = {
    "chat": chat,
    "chat, reasoning dropped": reasoning_chat,
    "agent loops": agents,
    "one long document": documents,
    "random lengths, resent": random_lengths,
    "exact multiples, resent": exact_multiples,
    "short of memory, resent": short_of_memory,
}


def read_trace(path: Path, limit: int = 0) -> Iterator[Request]:
    """The requests of a trace file, the first `limit` of them where it is not 0.

    Raises:
        ValueError: a line is not of one of the two forms; names the line.
    """
    hashed: list[_Hashed] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                request = _request(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: no request ({error!r})") from error
            if isinstance(request, Request):
                if not limit or number <= limit:
                    yield request
            else:
                hashed.append(request)
    _continue_tails(hashed)
    for number, request in enumerate(hashed[: limit or None]):
        yield request.as_request(number)


@dataclass(slots=True)
class _Hashed:
    """A request whose prompt is known by ids of blocks."""

    prompt_tokens: int
    answer_tokens: int
    ids: list[int]

    def as_request(self, number: int) -> Request:
        prompt = tuple(
            Segment(f"h{id}", min(HASHED_TOKENS, self.prompt_tokens - start))
            for id, start in zip(
                self.ids, range(0, self.prompt_tokens, HASHED_TOKENS), strict=True
            )
        )
        return Request(prompt, Segment(f"a{number}", self.answer_tokens))


def _request(line: dict[str, object]) -> Request | _Hashed:
    match line:
        case {"prompt": list(parts), "answer": [str(answer), int(tokens)]}:
            prompt = tuple(Segment(str(id), int(length)) for id, length in parts)
            return Request(prompt, Segment(answer, tokens))
        case {
            "input_length": int(prompt_tokens),
            "output_length": int(answer_tokens),
            "hash_ids": list(ids),
        } if len(ids) == -(-prompt_tokens // HASHED_TOKENS):
            return _Hashed(prompt_tokens, answer_tokens, ids)
    raise ValueError("neither prompt and answer nor lengths and a hash for each block")


def _continue_tails(requests: list[_Hashed]) -> None:
    """Give the last, short block of a prompt the id of the block that continues it.

    A short block has an id of its own, so a next turn seems to share nothing beyond
    the last whole block. Where exactly one other block follows the same whole blocks,
    and first in a later prompt that has room for the answer, it is that next turn.
    """
    followers: dict[int | None, set[int]] = {}
    first_in: dict[int, int] = {}
    for number, request in enumerate(requests):
        for before, id in zip([None, *request.ids], request.ids, strict=False):
            followers.setdefault(before, set()).add(id)
            first_in.setdefault(id, number)
    for number, request in enumerate(requests):
        if request.prompt_tokens % HASHED_TOKENS == 0:
            continue
        before, tail = [None, *request.ids][-2:]
        others = followers[before] - {tail}
        if len(others) == 1 and first_in[id := others.pop()] > number:
            needed = request.prompt_tokens + request.answer_tokens
            if requests[first_in[id]].prompt_tokens >= needed:
                request.ids[-1] = id
