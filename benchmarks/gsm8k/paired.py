"""Statistics of two passes over the same questions, from the standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Flips:
    """How right and wrong changed between two passes."""

    questions: int
    lost: int
    """Right before, wrong after."""
    gained: int
    low: float
    high: float
    """Confidence interval of the change in accuracy."""
    p_value: float
    """Two-sided exact McNemar: as uneven a split of the flips by chance alone."""

    @property
    def flips(self) -> int:
        return self.lost + self.gained


def flips(before: Sequence[bool], after: Sequence[bool]) -> Flips:
    """Compare two passes, question by question.

    Raises:
        ValueError: the passes have different lengths, or none.
    """
    pairs = list(zip(before, after, strict=True))
    if not pairs:
        raise ValueError("no questions to compare")
    lost = sum(b and not a for b, a in pairs)
    gained = sum(a and not b for b, a in pairs)
    low, high = _change_interval(len(pairs), lost, gained)
    p_value = min(1.0, 2 * at_least(max(lost, gained), lost + gained))
    return Flips(len(pairs), lost, gained, low, high, p_value)


def at_least(successes: int, trials: int) -> float:
    """Probability of so many heads or more in that many throws of a fair coin."""
    heads = sum(math.comb(trials, k) for k in range(successes, trials + 1))
    return float(heads / 2**trials)


def _change_interval(questions: int, lost: int, gained: int) -> tuple[float, float]:
    """Adjusted Wald interval of a difference of paired proportions.

    Half a flip added on each side keeps it from closing where nothing flipped.
    Source: Agresti and Min, Statistics in Medicine 24 (2005), section 3.
    """
    size = questions + 2
    change = gained - lost
    spread = math.sqrt(lost + gained + 1 - change**2 / size) / size
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * spread
    middle = change / size
    return max(-1.0, middle - reach), min(1.0, middle + reach)
