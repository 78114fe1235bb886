"""Problems are right, as long as asked for, and answerable from their text alone."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.trained_model.tasks import ASKED_NAMES, KINDS, MARK, problem, rows

LENGTHS = (150, 1000, 3500)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_follows_from_the_text(kind: str, length: int) -> None:
    for seed in range(20):
        found = problem(random.Random(seed), length, kind)
        stated = dict(re.findall(r"([A-Z])=(\d)", found.text))
        text, _, question = found.text.rpartition(": ")
        asked = question.removesuffix("?").split()
        if kind == "count":
            assert found.answer == text.count(MARK)
            continue
        assert len(asked) == ASKED_NAMES
        values = [stated[name] for name in asked]
        if kind == "recall":
            assert found.answer == int("".join(values))
        else:
            assert found.answer == sum(map(int, values))
        assert all(f"{name}={stated[name]}" in found.solution for name in asked)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_name_has_one_value_and_is_stated_in_the_first_half(length: int) -> None:
    found = problem(random.Random(1), length, "recall")
    assert len(found.text) <= length
    pairs = re.findall(r"([A-Z])=(\d)", found.text)
    values = dict(pairs)
    assert set(pairs) == set(values.items())
    first = {name: found.text.index(f"{name}=") for name in values}
    assert max(first.values()) < 0.75 * len(found.text)


def test_repeated_values_were_stated_before() -> None:
    found = problem(random.Random(2), 1000, "sum")
    assert len(found.repeated) > 10
    for at in found.repeated:
        statement = found.text[at - 2 : at + 1]
        assert re.fullmatch(r"[A-Z]=\d", statement)
        assert statement in found.text[: at - 2]


def test_rows_are_the_harness_s_and_grow_by_addition() -> None:
    few, many = list(rows(4, 7, 300)), list(rows(9, 7, 300))
    assert many[:4] == few
    assert {row["id"].split("-")[0] for row in many} == set(KINDS)
    assert len({row["problem"] for row in many}) == len(many)
    assert list(rows(4, 8, 300)) != few
