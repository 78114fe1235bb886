"""Distributions of lengths and counts, as they are written on the command line.

350                         always 350
uniform:LOW:HIGH            LOW to HIGH, both included
lognormal:MEDIAN:SIGMA:MAX  at least 1, at most MAX
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Self

from sglang_qsa.errors import ConfigError, refusal

_FORMS = {"uniform": 2, "lognormal": 3}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Where whole numbers of at least 1 are drawn from."""

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, origin: str) -> Self:
        """Read one of the forms above.

        Raises:
            ConfigError: it is none of them; names `origin`.
        """
        kind, *rest = text.split(":") if ":" in text else ("fixed", text)
        try:
            numbers = tuple(float(part) for part in rest)
        except ValueError:
            numbers = ()
        if len(numbers) != _FORMS.get(kind, 1) or not _is_usable(kind, numbers):
            raise ConfigError(
                refusal(
                    found=repr(text),
                    wanted="N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX, "
                    "with whole numbers of at least 1",
                    origin=origin,
                    way_out="write for example lognormal:150:0.8:4000",
                )
            )
        return cls(kind, numbers)

    def draw(self, source: random.Random) -> int:
        match self.kind, self.numbers:
            case "uniform", (low, high):
                return source.randint(int(low), int(high))
            case "lognormal", (median, sigma, most):
                drawn = source.lognormvariate(0, sigma) * median
                return int(min(max(drawn, 1), most))
        return int(self.numbers[0])

    def scaled(self, factor: float) -> Lengths:
        """The same shape, `factor` times as long."""
        numbers = [max(number * factor, 1) for number in self.numbers]
        if self.kind == "lognormal":
            numbers[1] = self.numbers[1]
        return replace(self, numbers=tuple(numbers))


def _is_usable(kind: str, numbers: tuple[float, ...]) -> bool:
    match kind, numbers:
        case "fixed", (number,):
            return number >= 1
        case "uniform", (low, high):
            return 1 <= low <= high
        case "lognormal", (median, sigma, most):
            return median >= 1 and most >= 1 and sigma >= 0
    return False
