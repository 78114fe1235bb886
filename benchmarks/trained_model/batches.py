"""Problems as token ids, with the weight that each next token has in the loss."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.trained_model.tasks import KINDS, MOST_NAMES, REPEATS, Problem, problem

REPEATED_WEIGHT = 0.5
"""Of a value that the text states again, where an answer's token has 1."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded sequences.

    Attributes:
        ids: [batch, tokens], int64.
        weights: [batch, tokens - 1], fp32: of the token after each position.
        answers: [batch, tokens - 1], bool: the tokens of answers among them.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    answers: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        moved = (t.to(device) for t in (self.ids, self.weights, self.answers))
        return Batch(*moved)


class Batches:
    """An endless source.

    Args:
        tokenizer: one token for each character, as the tiny model's.
        prompt: puts a problem's text into what a server's chat is sent.
        seed: of problems that no evaluation with another seed has.
        most_names: that have a value, in a long text.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Callable[[str], str],
        seed: int,
        most_names: int = MOST_NAMES,
    ) -> None:
        self._most_names = most_names
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._source = random.Random(f"train {seed}")

    def draw(
        self,
        count: int,
        lengths: tuple[int, int],
        *,
        prompted: bool = True,
        repeats: float = REPEATS,
    ) -> Batch:
        """`count` problems, with texts of the shortest to the longest length."""
        rows = [self._row(lengths, prompted, repeats) for _ in range(count)]
        tokens = max(len(ids) for ids, _, _ in rows)
        ids = torch.full((count, tokens), self._tokenizer.pad_token_id)
        weights = torch.zeros(count, tokens)
        answers = torch.zeros(count, tokens, dtype=torch.bool)
        for at, (row, repeated, start) in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            weights[at, repeated] = REPEATED_WEIGHT
            weights[at, start : len(row)] = 1.0
            answers[at, start : len(row)] = True
        return Batch(ids, weights[:, 1:], answers[:, 1:])

    def _row(
        self, lengths: tuple[int, int], prompted: bool, repeats: float
    ) -> tuple[list[int], list[int], int]:
        """Token ids, positions of repeated values, and where the answer starts."""
        length = self._source.randint(*lengths)
        kind = self._source.choice(KINDS)
        found = problem(self._source, length, kind, repeats, self._most_names)
        prompt = self._prompt("\0") if prompted else "\0 "
        before, _, after = prompt.partition("\0")
        asked = before + found.text + after
        text = asked + answer(found)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != len(text):
            raise ValueError("the tokenizer has not one token for each character")
        repeated = [len(before) + at for at in found.repeated]
        return [*ids, self._tokenizer.eos_token_id], repeated, len(asked)


def answer(found: Problem) -> str:
    """What the model is to say, as the harness's worked examples say it."""
    return f"{found.solution}\n\\boxed{{{found.answer}}}"
