from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.gsm8k.answers import Answer, Report, from_response
from benchmarks.gsm8k.repeats import ends_in_loop, loops, same_output


def answer(question: str, tokens: Sequence[int] = (), text: str = "") -> Answer:
    report = Report(tuple(tokens), (), 0, 0, 0, 0, True, 0, 0)
    return Answer(question, text, report, False, None, "stop", 0.0)


@pytest.mark.parametrize(
    ("output", "loop"),
    [
        ([], False),
        ([1, 2, 3, 4], False),
        ([5] * 4, True),
        ([1, 2, 3, 9, 9, 9, 9], True),
        ([1, 2, 3, 4, 5, 9, 9, 9, 9], False),
        ([0, *[1, 2, 3] * 4], True),
        ([*[1, 2, 3] * 4, 0], False),
        ([*[1, 2, 3] * 3, 1, 2], False),
        ("so it is. so it is. so it is. so it is. ", True),
        ("The answer is 12.", False),
    ],
)
def test_loops(output: Sequence[object], loop: bool) -> None:
    assert ends_in_loop(output) is loop


def test_loops_are_found_in_text_too() -> None:
    found = loops([answer("a", [1, 2]), answer("b", text="no " * 9)])
    assert found == ["b"]


def test_long_outputs_of_two_questions_are_reported() -> None:
    long, short = list(range(16)), [1, 2]
    answers = [answer("a", long), answer("b", long), answer("c", long[1:])]
    assert same_output(answers) == ["a", "b"]
    assert same_output([answer("a", short), answer("b", short)]) == []


def test_a_response_without_extensions() -> None:
    report = from_response({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}})
    assert report == Report((), (), 5, 0, 0, 0, False, 0, 0)
