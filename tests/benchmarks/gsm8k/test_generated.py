from __future__ import annotations

import re

from benchmarks.gsm8k.generated import problems


def test_a_seed_is_a_set() -> None:
    few, many = problems(5, 7), problems(50, 7)
    assert many[:5] == few
    assert problems(5, 8) != few
    assert len({row["problem"] for row in many}) == 50


def test_the_text_has_the_answer() -> None:
    """Read back by other means than it was written with."""
    for row in problems(100, 0):
        name = row["problem"].split()[0]
        numbers = {
            verb: [int(n) for n in re.findall(rf"{name} {verb} (\d+) ", row["problem"])]
            for verb in ("has", "buys", "gives")
        }
        (start,), (boxes,), (given,) = numbers.values()
        (each,) = map(int, re.findall(r"with (\d+) ", row["problem"]))
        assert row["expected_answer"] == start + boxes * each - given > 0
        assert f"= {row['expected_answer']} are left" in row["reference_solution"]
