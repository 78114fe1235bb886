"""Totals and rates of the series on two pages, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_qsa.watch.page import Page


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest page, and the one before it if there was one."""

    page: Page
    before: Page | None = None

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of these series; None where the page has none of them."""
        found = self.page.find(name, **labels)
        return sum(sample.value for sample in found) if found else None

    def rate(self, name: str, **labels: str) -> float | None:
        """Growth per second; None on the first page, or where the page has none.

        What appeared or fell counts from 0, as in Prometheus: a server that starts
        anew has no series until something happens.
        """
        found = self.page.find(name, **labels)
        if self.before is None or not found:
            return None
        earlier = {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in self.before.find(name, **labels)
        }
        grown = 0.0
        for sample in found:
            old = earlier.get(tuple(sorted(sample.labels.items())), 0.0)
            grown += sample.value - (old if old <= sample.value else 0.0)
        return grown / max(self.page.seconds - self.before.seconds, 1e-9)
