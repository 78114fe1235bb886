"""What counts as a loss on a server that is not the same twice by itself."""

from __future__ import annotations

import pytest

from benchmarks.gsm8k.answers import Answer, Pass, Report
from benchmarks.gsm8k.verdict import Limits, Verdict, judge

QUESTIONS = 100


def limits(compare: str) -> Limits:
    return Limits(compare, "tier", 1.0, 0.5, 0.02)


def passed(name: Pass, wrong: range) -> list[Answer]:
    """Right answers but for some; each wrong one has tokens of its own."""
    device, tier = {Pass.COLD: (0, 0), Pass.TIER: (0, 64)}.get(name, (64, 0))
    return [
        Answer(
            question=str(number),
            text="",
            report=Report(
                (number, 1 if number in wrong else 0, *range(number)),
                (-0.5 if number in wrong else -0.25,),
                100,
                device + tier,
                device,
                tier,
                True,
                0,
                0,
            ),
            correct=number not in wrong,
            extracted=None,
            finish_reason="stop",
            seconds=1.0,
        )
        for number in range(QUESTIONS)
    ]


def verdict(compare: str, *, control: range, tier: range) -> Verdict:
    nothing = range(0)
    passes = {
        Pass.COLD: passed(Pass.COLD, nothing),
        Pass.DEVICE: passed(Pass.DEVICE, nothing),
        Pass.CONTROL: passed(Pass.CONTROL, control),
        Pass.TIER: passed(Pass.TIER, tier),
    }
    return judge(passes, limits(compare))


@pytest.mark.parametrize("compare", ["answers", "tokens"])
@pytest.mark.parametrize(
    ("control", "tier", "loss"),
    [
        (range(0), range(0), False),
        (range(0), range(1), True),
        (range(5), range(3), False),
        (range(5), range(20, 28), False),
        (range(5), range(20, 45), True),
        (range(50), range(50), False),
    ],
)
def test_noise_is_no_loss(
    compare: str, control: range, tier: range, loss: bool
) -> None:
    found = verdict(compare, control=control, tier=tier)
    assert bool(found.failures) is loss


def test_every_failure_names_its_figures() -> None:
    found = verdict("answers", control=range(0), tier=range(7))
    assert found.failures == (
        "answers flip: 7 of 100 from the tier (7 lost, 0 gained), "
        "0 in a second device pass",
    )
    change = found.flips[Pass.TIER]
    assert change.low < -0.07 < change.high < 0
