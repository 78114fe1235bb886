"""Arithmetic word problems from a seed, for machines that cannot load GSM8K.

Facts that matter stand among facts that do not, and the question asks for one that was
stated first: who has lost the beginning of the prompt cannot answer.
"""

from __future__ import annotations

import random
from typing import TypedDict

_NAMES = ("Ada", "Ben", "Cleo", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jun")
_THINGS = ("apples", "stamps", "shells", "coins", "marbles", "books", "pens", "tickets")
_PLACES = ("market", "harbour", "school", "library", "garden", "station", "museum")


class Problem(TypedDict):
    """A row as the harness reads it."""

    id: str
    problem: str
    expected_answer: int
    reference_solution: str


def problems(count: int, seed: int) -> list[Problem]:
    """The first `count` problems of a seed; a larger count only adds to them."""
    source = random.Random(seed)
    return [_problem(f"generated-{seed}-{index}", source) for index in range(count)]


def _problem(identity: str, source: random.Random) -> Problem:
    name, other, *others = source.sample(_NAMES, 5)
    thing = source.choice(_THINGS)
    start, boxes, each = (source.randint(low, high) for low, high in _RANGES)
    given = source.randint(1, start + boxes * each - 1)
    asides = [
        f"{who} walks {source.randint(2, 90)} minutes to the {source.choice(_PLACES)}."
        for who in others
    ]
    total = start + boxes * each
    text = " ".join(
        [
            f"{name} has {start} {thing}.",
            asides[0],
            f"At the {source.choice(_PLACES)} {name} buys {boxes} boxes "
            f"with {each} {thing} in each.",
            *asides[1:],
            f"Then {name} gives {given} {thing} to {other}.",
            f"How many {thing} does {name} have now?",
        ]
    )
    solution = (
        f"The boxes hold {boxes} * {each} = {boxes * each} {thing}. "
        f"With them {name} has {start} + {boxes * each} = {total}. "
        f"After the gift {total} - {given} = {total - given} are left."
    )
    return Problem(
        id=identity,
        problem=text,
        expected_answer=total - given,
        reference_solution=solution,
    )


_RANGES = ((3, 60), (2, 9), (2, 12))
"""Of the number at the start, the boxes, and what a box holds."""
