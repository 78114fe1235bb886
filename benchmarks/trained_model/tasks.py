"""Generated problems whose answers stand thousands of tokens before their question.

A text states values of one-letter names, among words that mean nothing:

    recall: the values of three names, written in a row
    sum: their sum
    count: how many times a mark occurs

Who has lost the beginning of the text, or a part of it, cannot answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

KINDS = ("recall", "sum", "count")
MOST_NAMES = 24
"""More than the states of delta layers can tell apart for long: with 8 a trained model
answers without its attention."""
ASKED_NAMES = 3
MARK = "@"
MOST_MARKS = 6
REPEATS = 0.2
_QUESTION_ROOM = 16

_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORDS = """
the a of and to in is was for on with as by at from it this that river stone garden
window paper bridge winter summer morning market harbour lamp table quiet early
distant small green yellow old walks stands waits turns opens falls
"""
_FILLER = _WORDS.split()


class Row(TypedDict):
    """A row as the evaluation's harness reads it."""

    id: str
    problem: str
    expected_answer: int
    reference_solution: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A text with its question, and how it is answered.

    Attributes:
        text: statements, then the question.
        solution: the steps that lead to the answer.
        repeated: offsets in `text` of values that were stated before, as a model
            that remembers can tell them.
    """

    kind: str
    text: str
    solution: str
    answer: int
    repeated: tuple[int, ...]


def rows(
    count: int, seed: int, length: int, most_names: int = MOST_NAMES
) -> Iterator[Row]:
    """Problems of about `length` characters, the kinds in turns.

    A larger count only adds to the first ones.
    """
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        found = problem(
            random.Random(f"{seed} {index}"), length, kind, most_names=most_names
        )
        yield Row(
            id=f"{kind}-{seed}-{index}",
            problem=found.text,
            expected_answer=found.answer,
            reference_solution=found.solution,
        )


def problem(
    source: random.Random,
    length: int,
    kind: str,
    repeats: float = REPEATS,
    most_names: int = MOST_NAMES,
) -> Problem:
    """One problem of at most `length` characters, if that holds its statements.

    Args:
        repeats: share of what fills the text that states a value again.
        most_names: that have a value, in a long text.
    """
    room = length - _QUESTION_ROOM
    names = source.sample(_NAMES, max(min(room // 30, most_names), ASKED_NAMES))
    values = {name: source.randint(0, 9) for name in names}
    marks = source.randint(1, MOST_MARKS) if kind == "count" else 0
    pieces = _pieces(source, values, marks, room, repeats)
    text, repeated = _joined(pieces)
    asked = source.sample(names, ASKED_NAMES)
    question, solution, answer = _QUESTIONS[kind](asked, values, marks)
    return Problem(kind, f"{text} {question}", solution, answer, repeated)


def _pieces(
    source: random.Random,
    values: dict[str, int],
    marks: int,
    length: int,
    repeats: float,
) -> list[tuple[str, bool]]:
    """Statements in any order, then again some of them; True: stated before."""
    statements = [(f"{name}={value}", False) for name, value in values.items()]
    left = length - sum(len(text) + 1 for text, _ in statements) - 2 * marks
    others: list[tuple[str, bool]] = []
    while left > 0:
        if source.random() < repeats:
            name = source.choice(list(values))
            others.append((f"{name}={values[name]}", True))
        else:
            others.append((source.choice(_FILLER), False))
        left -= len(others[-1][0]) + 1
    others = others[:-1] + [(MARK, False)] * marks
    # Statements come in the first half, so that questions are far from them.
    cut = len(others) // 2
    source.shuffle(others)
    first = [piece for piece in others[:cut] if not piece[1]] + statements
    source.shuffle(first)
    again = [piece for piece in others[:cut] if piece[1]] + others[cut:]
    source.shuffle(again)
    return first + again


def _joined(pieces: list[tuple[str, bool]]) -> tuple[str, tuple[int, ...]]:
    """The text, and where in it the last character of a repeated piece stands."""
    at, repeated = 0, []
    for text, is_repeated in pieces:
        if is_repeated:
            repeated.append(at + len(text) - 1)
        at += len(text) + 1
    return " ".join(text for text, _ in pieces), tuple(repeated)


def _recall(asked: list[str], values: dict[str, int], _: int) -> tuple[str, str, int]:
    steps = " ".join(f"{name}={values[name]}" for name in asked)
    digits = "".join(str(values[name]) for name in asked)
    return f"row: {' '.join(asked)}?", steps, int(digits)


def _sum(asked: list[str], values: dict[str, int], _: int) -> tuple[str, str, int]:
    steps, total = [], 0
    for name in asked:
        total += values[name]
        steps.append(f"{name}={values[name]} {total:02d}")
    return f"sum: {' '.join(asked)}?", " ".join(steps), total


def _count(_: list[str], __: dict[str, int], marks: int) -> tuple[str, str, int]:
    return f"marks: {MARK}?", f"{MARK}:{marks}", marks


_QUESTIONS = {"recall": _recall, "sum": _sum, "count": _count}
