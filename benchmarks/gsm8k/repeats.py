"""Two ways in which a broken cache shows without any reference answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.gsm8k.answers import Answer

_MIN_ROUNDS = 4
_MIN_SHARE = 0.5
"""An output that ends in this many rounds of one phrase, over this share of it."""

_MIN_SAME = 16
"""Shorter outputs may well be the same for two questions."""


def ends_in_loop(output: Sequence[object]) -> bool:
    """Whether most of the output is one phrase, again and again up to its end."""
    size = len(output)
    for period in range(1, size // _MIN_ROUNDS + 1):
        run = _periodic_tail(output, period)
        if run >= _MIN_ROUNDS * period and run >= _MIN_SHARE * size:
            return True
    return False


def loops(answers: Sequence[Answer]) -> list[str]:
    """The questions whose output ends in a loop."""
    return [answer.question for answer in answers if ends_in_loop(answer.output)]


def same_output(answers: Sequence[Answer]) -> list[str]:
    """The questions whose long output another question got too, as it is."""
    outputs = {answer.question: tuple(answer.output) for answer in answers}
    seen = Counter(outputs.values())
    return [
        question
        for question, output in outputs.items()
        if len(output) >= _MIN_SAME and seen[output] > 1
    ]


def _periodic_tail(output: Sequence[object], period: int) -> int:
    """Length of the longest end of the output that repeats with this period."""
    last = len(output) - 1
    run = period
    while run <= last and output[last - run] == output[last - run + period]:
        run += 1
    return run
