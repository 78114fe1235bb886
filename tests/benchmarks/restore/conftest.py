"""What tests of the command share."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks.restore import ceiling, command, moved
from tests.benchmarks.restore.runs import COPY_S_PER_BYTE, QUIET_S


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a fake server end at once, and the ceiling is arithmetic."""

    def measure(sizes: Iterable[int]) -> ceiling.Ceiling:
        return ceiling.Ceiling(
            "fake GPU", {size: size * COPY_S_PER_BYTE for size in sizes}
        )

    monkeypatch.setattr(moved, "BACKUP_QUIET_S", QUIET_S)
    monkeypatch.setattr(moved, "_LOAD_QUIET_S", 0.02)
    monkeypatch.setattr(moved, "_LOAD_MOST_S", 0.2)
    monkeypatch.setattr(moved, "_POLL_S", 0.01)
    monkeypatch.setattr(ceiling, "measure", measure)


@pytest.fixture
def no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_figures` looks at it; elsewhere it would take most of the time."""
    monkeypatch.setattr(command, "draw", lambda _: "")
