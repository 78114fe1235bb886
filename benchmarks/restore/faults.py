"""What makes a run's figures worthless, in one line for each server and length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.restore.between import EVICT, FLUSH
from benchmarks.restore.run import Side
from benchmarks.restore.samples import (
    COLD,
    COMPARED,
    HIT,
    RESTORED,
    RESTORING,
    Answer,
    Sample,
)
from sglang_qsa.errors import refusal

NOT_COLD, UNSERVED, UNEQUAL = "not cold", "unserved", "unequal"


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` is one of the three above."""

    kind: str
    text: str


def find(sides: Sequence[Side], between: str) -> list[Fault]:
    """Those of the requests that were answered so far."""
    return [fault for side in sides for fault in _of_side(side, between)]


def _of_side(side: Side, between: str) -> Iterator[Fault]:
    for length in dict.fromkeys(sample.length_tokens for sample in side.samples):
        samples = [s for s in side.samples if s.length_tokens == length]
        for check in _CHECKS:
            bad = [sample for sample in samples if check.is_bad(sample)]
            if bad:
                found = f"{check.found(bad[0])} in {len(bad)} of {len(samples)} repeats"
                text = refusal(
                    found=found,
                    wanted=check.wanted,
                    origin=f"{side.name}, {side.server.url}, {length:,} tokens",
                    way_out=check.ways_out[between],
                )
                yield Fault(check.kind, text)


def _is_not_cold(sample: Sample) -> bool:
    return COLD in sample.answers and not sample.was_cold


def _not_cold(sample: Sample) -> str:
    return f"a cold prompt with {_sources(sample.answers[COLD])}"


def _is_unserved(sample: Sample) -> bool:
    return RESTORED in sample.answers and not sample.served


def _unserved(sample: Sample) -> str:
    restored, hit = (_sources(sample.answers[step]) for step in (RESTORED, HIT))
    return f"a restored prompt with {restored} (its device hit: {hit})"


def _is_unequal(sample: Sample) -> bool:
    return not sample.outputs_equal


def _unequal(sample: Sample) -> str:
    groups: dict[tuple[int, ...], list[str]] = {}
    for step in COMPARED:
        if step in sample.answers:
            groups.setdefault(sample.answers[step].output_ids, []).append(step)
    return "answers " + " ≠ ".join(" = ".join(steps) for steps in groups.values())


def _sources(answer: Answer) -> str:
    """For example: tokens host 8,192, computed 12."""
    parts = (f"{name} {tokens:,}" for name, tokens in answer.sources.items())
    return "tokens " + ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Check:
    kind: str
    is_bad: Callable[[Sample], bool]
    found: Callable[[Sample], str]
    wanted: str
    ways_out: Mapping[str, str]
    """By how the device was emptied."""


_CHECKS = (
    _Check(
        NOT_COLD,
        _is_not_cold,
        _not_cold,
        "one that was never sent",
        dict.fromkeys((FLUSH, EVICT), "use another --seed"),
    ),
    _Check(
        UNSERVED,
        _is_unserved,
        _unserved,
        f"as much from {', '.join(RESTORING[:-1])} or {RESTORING[-1]}",
        {
            FLUSH: "raise --settle-s; a flush empties host memory too (--between "
            "evict), and storage is asked for 256 tokens or more",
            EVICT: "raise --settle-s, or make the tier larger than "
            "twice the device's capacity",
        },
    ),
    _Check(
        UNEQUAL,
        _is_unequal,
        _unequal,
        "equal ones",
        dict.fromkeys(
            (FLUSH, EVICT),
            "where the device hits differ, see the server's block selection "
            "(kernel_topk), else its tier",
        ),
    ),
)
