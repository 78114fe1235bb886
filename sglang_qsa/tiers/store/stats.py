"""What the store did: counters of this process, mirrored to the server's metrics."""

from __future__ import annotations

import threading
from collections import Counter

from sglang_qsa import metrics
from sglang_qsa.tiers.store.record import Kind, Outcome


class Tally:
    """Counts by (series, labels); threads may call everything at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def record(self, kind: Kind, result: Outcome | str, amount: int = 1) -> None:
        """Records read, by outcome, or written."""
        unit = kind.name.lower()
        self._add("records", amount, unit=unit, result=str(result))

    def quarantined(self, kind: Kind, cause: Outcome) -> None:
        self._add("quarantined", 1, unit=kind.name.lower(), result=cause.value)

    def put(self, result: str) -> None:
        """Checkpoints offered to the store."""
        self._add("puts", 1, result=result)

    def lookup(self, result: str) -> None:
        self._add("lookups", 1, result=result)

    def moved(self, direction: str, amount: int) -> None:
        """Bytes of records written, read or evicted."""
        self._add("bytes", amount, direction=direction)

    def count(self, series: str, *labels: str) -> int:
        """The sum of a series over labels that are not given; they come in order."""
        with self._lock:
            return sum(
                amount
                for key, amount in self._counts.items()
                if key[: 1 + len(labels)] == (series, *labels)
            )

    def as_dict(self) -> dict[str, int]:
        """Every count, by its labels joined with a dot."""
        with self._lock:
            return {".".join(key): amount for key, amount in self._counts.items()}

    def _add(self, series: str, amount: int, **labels: str) -> None:
        with self._lock:
            self._counts[(series, *labels.values())] += amount
        metrics.count(f"sglang_qsa_store_{series}_total", amount, **labels)
