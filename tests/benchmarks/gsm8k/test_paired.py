"""Against published values, and against all orders of flips."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gsm8k.paired import at_least, flips


def outcomes(
    both: int, lost: int, gained: int, neither: int
) -> tuple[list[bool], list[bool]]:
    before = [True] * (both + lost) + [False] * (gained + neither)
    after = [True] * both + [False] * lost + [True] * gained + [False] * neither
    return before, after


def test_published_interval() -> None:
    """The approval ratings of Agresti and Min (2005), table I: 794, 150, 86, 570."""
    found = flips(*outcomes(794, 150, 86, 570))
    assert (found.lost, found.gained, found.flips) == (150, 86, 236)
    assert found.low == pytest.approx(-0.059, abs=5e-4)
    assert found.high == pytest.approx(-0.021, abs=5e-4)
    assert found.p_value == pytest.approx(3.716e-5, rel=1e-3)


def test_no_flips_leave_an_interval() -> None:
    found = flips([True] * 100, [True] * 100)
    assert found.p_value == 1
    assert found.low == -found.high
    assert 0.01 < found.high < 0.04


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_exchanging_the_passes_turns_the_interval(
    pairs: list[tuple[bool, bool]],
) -> None:
    before, after = zip(*pairs, strict=True)
    there, back = flips(before, after), flips(after, before)
    assert (there.lost, there.gained) == (back.gained, back.lost)
    assert there.low == pytest.approx(-back.high)
    assert there.p_value == back.p_value
    assert there.low <= (there.gained - there.lost) / len(pairs) <= there.high


def test_tail_of_a_fair_coin() -> None:
    assert at_least(0, 0) == 1
    assert at_least(7, 7) == 2**-7
    assert at_least(3, 5) == sum(comb(5, k) for k in (3, 4, 5)) / 32


def test_passes_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        flips([True], [])
    with pytest.raises(ValueError, match="no questions"):
        flips([], [])
