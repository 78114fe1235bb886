"""Segments to token ids, and what of a prompt was sent before."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from copy import copy

from benchmarks.radix_cache.workloads import Turn
from benchmarks.traces import Segment, page_keys

GRAIN_TOKENS = 64
"""Granularity of `reusable`: the page of the model's pools."""


class Tokens:
    """Token ids of made-up segments, a function of seed and segment id.

    A shorter segment with the same id is the beginning of the longer one.
    """

    def __init__(self, seed: int, vocabulary: range) -> None:
        self._seed: int | str = seed
        self._vocabulary = list(vocabulary)
        self._made: dict[Segment, list[int]] = {}

    def others(self) -> Tokens:
        """Other tokens for the same segments, for a run that leaves no trace."""
        others = copy(self)
        others._seed, others._made = f"other {self._seed}", {}
        return others

    def prepare(self, turns: Iterable[Turn]) -> None:
        """Make the segments of `turns` now, and forget those of others."""
        wanted = {segment for turn in turns for segment in turn.request.prompt}
        self._made = {segment: self.of(segment) for segment in wanted}

    def of(self, segment: Segment) -> list[int]:
        return self._made.get(segment) or self._made_up(segment)

    def prompt(self, turn: Turn, answers: Mapping[str, list[int]]) -> list[int]:
        """The prompt's ids; segments named in `answers` are taken from there."""
        ids: list[int] = []
        for segment in turn.request.prompt:
            ids += answers.get(segment.id) or self.of(segment)
        return ids

    def _made_up(self, segment: Segment) -> list[int]:
        source = random.Random(f"{self._seed} {segment.id}")
        return source.choices(self._vocabulary, k=segment.tokens)


def reusable(turns: Iterable[Turn]) -> list[int]:
    """Tokens of each prompt that earlier turns sent or got, in whole pages.

    What a cache of unlimited size could serve at most: the last token of a prompt is
    always computed, and the last token of an answer has no state yet.
    """
    seen: set[int] = set()
    found = []
    for turn in turns:
        request = turn.request
        whole = page_keys(request.prompt, GRAIN_TOKENS)
        most = (request.prompt_tokens - 1) // GRAIN_TOKENS
        known = 0
        while known < most and whole[known] in seen:
            known += 1
        found.append(known * GRAIN_TOKENS)
        answer = Segment(request.answer.id, request.answer.tokens - 1)
        seen.update(page_keys((*request.prompt, answer), GRAIN_TOKENS))
    return found
