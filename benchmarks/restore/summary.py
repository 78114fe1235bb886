"""Figures out of samples: medians with their spread, by length, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.restore.ceiling import Ceiling
from benchmarks.restore.run import Side
from benchmarks.restore.samples import COLD, HIT, RESTORED, RESTORING, Sample

Row = dict[str, Any]

COMPARED_TIMES = ("cold_s", "device_hit_s", "restored_s", "added_s")


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, smallest and largest value; None without values."""
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
    }


def loaded_median(samples: Sequence[Sample]) -> int | None:
    """Bytes of the samples that were served; None where none reports them."""
    loaded = [s.loaded_bytes for s in samples if s.served and s.loaded_bytes]
    return int(statistics.median(loaded)) if loaded else None


def sizes(sides: Sequence[Side]) -> set[int]:
    """Every number of bytes that `rows` asks the ceiling for."""
    found = {loaded_median(of) for side in sides for of in _by_length(side).values()}
    return {size for size in found if size is not None}


def rows(side: Side, ceiling: Ceiling) -> list[Row]:
    """One for each length, in the order in which they were measured first."""
    return [_row(length, of, ceiling) for length, of in _by_length(side).items()]


def compare(ours: Sequence[Row], theirs: Sequence[Row]) -> list[Row]:
    """Ratios of medians, the first server's to the second's, by length."""
    by_length = {row["length_tokens"]: row for row in theirs}
    return [
        {"length_tokens": row["length_tokens"]}
        | {name: _of_medians(row[name], other[name]) for name in COMPARED_TIMES}
        for row in ours
        if (other := by_length.get(row["length_tokens"]))
    ]


def _by_length(side: Side) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for sample in side.samples:
        found.setdefault(sample.length_tokens, []).append(sample)
    return found


def _row(length: int, samples: Sequence[Sample], ceiling: Ceiling) -> Row:
    served = [sample for sample in samples if sample.served]
    compared = [sample for sample in served if sample.added_s is not None]
    loaded = loaded_median(samples)
    added = spread([s.added_s for s in compared if s.added_s is not None])
    copy_s = ceiling.seconds.get(loaded) if loaded else None
    added_s = added["median"] if added and added["median"] > 0 else None
    return {
        "length_tokens": length,
        "samples": len(samples),
        "ended": sum(sample.ended for sample in samples),
        "served": len(served),
        "compared": len(compared),
        "compared_with": sorted({s.yardstick for s in compared if s.yardstick}),
        "cold_s": _times(samples, lambda s: COLD if s.was_cold else None),
        "device_hit_s": _times(samples, lambda s: s.yardstick or HIT),
        "restored_s": _times(served, lambda _: RESTORED),
        "added_s": added,
        "tier_tokens": _tier_tokens(served),
        "loaded_bytes": loaded,
        "gb_per_s": _ratio(loaded, added_s, 1e-9),
        "pinned_copy_s": copy_s,
        "times_pinned_copy": _ratio(added_s, copy_s),
    }


def _times(
    samples: Sequence[Sample], step: Callable[[Sample], str | None]
) -> dict[str, float] | None:
    """Times to the first token, of the step that each sample has for it."""
    answers = [sample.answers.get(step(sample) or "") for sample in samples]
    return spread([answer.ttft_s for answer in answers if answer])


def _tier_tokens(served: Sequence[Sample]) -> dict[str, int]:
    """Median by tier; without tiers that served nothing."""
    found = {
        tier: [sample.answers[RESTORED].sources.get(tier, 0) for sample in served]
        for tier in RESTORING
    }
    return {t: int(statistics.median(n)) for t, n in found.items() if any(n)}


def _of_medians(
    first: Mapping[str, float] | None, second: Mapping[str, float] | None
) -> float | None:
    if first is None or second is None or min(first["median"], second["median"]) <= 0:
        return None
    return first["median"] / second["median"]


def _ratio(
    first: float | None, second: float | None, factor: float = 1
) -> float | None:
    return first / second * factor if first is not None and second else None
