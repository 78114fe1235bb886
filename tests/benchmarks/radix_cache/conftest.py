"""What tests of the command share."""

from __future__ import annotations

import pytest

from benchmarks.radix_cache import page


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_page` looks at them; here they would take most of the time."""
    names = ("reuse", "latency", "timeline")
    monkeypatch.setattr(page, "draw", lambda _: dict.fromkeys(names, ""))
