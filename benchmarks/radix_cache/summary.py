"""Figures out of samples: reuse by tier, percentiles, rates, ratios of two servers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.radix_cache import counters
from benchmarks.radix_cache.run import Side
from benchmarks.radix_cache.samples import COMPUTED, SOURCES, Sample
from benchmarks.radix_cache.tokens import GRAIN_TOKENS

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolated linearly between the two nearest values; None without values.

    Args:
        values: in any order.
        share: from 0 (the smallest) to 1 (the largest).
    """
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, mean, `QUANTILES` and maximum."""
    return {
        "count": len(values),
        "mean": sum(values) / len(values) if values else None,
        **{name: percentile(values, share) for name, share in QUANTILES.items()},
        "max": max(values, default=None),
    }


def median_with_range(values: Sequence[float]) -> dict[str, float | None]:
    """The median and its 95 % confidence interval from order statistics."""
    half = 0.98 / math.sqrt(len(values)) if values else 0.0
    return {
        "median": percentile(values, 0.5),
        "low": percentile(values, max(0.5 - half, 0)),
        "high": percentile(values, min(0.5 + half, 1)),
    }


def token_gaps(samples: Iterable[Sample]) -> list[float]:
    """Seconds for each token after the first; tokens that came together share a gap."""
    return [
        seconds / tokens
        for sample in samples
        for seconds, tokens in sample.gaps
        for _ in range(tokens)
    ]


def figures(samples: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """All figures of some requests of one server, measured in `seconds`."""
    prompt = sum(sample.prompt_tokens for sample in samples)
    answer = sum(sample.answer_tokens for sample in samples)
    sources = Counter[str]()
    for sample in samples:
        sources.update(sample.sources)
    cached = prompt - sources[COMPUTED]
    reusable = sum(sample.reusable_tokens for sample in samples)
    return {
        "requests": len(samples),
        "seconds": seconds,
        "prompt_tokens": prompt,
        "answer_tokens": answer,
        "tokens_by_source": {source: sources[source] for source in SOURCES},
        "cached_tokens": cached,
        "cached_share": _ratio(cached, prompt),
        "reusable_tokens": reusable,
        "cached_of_reusable": _ratio(cached, reusable),
        "requests_beyond_reusable": sum(map(_is_beyond, samples)),
        "ttft_s": spread([sample.ttft_s for sample in samples]),
        "ttft_s_by_deepest_source": {
            source: spread([s.ttft_s for s in samples if s.deepest == source])
            for source in SOURCES
            if any(s.deepest == source for s in samples)
        },
        "inter_token_s": spread(token_gaps(samples)),
        "longest_gap_s": max(
            (gap for sample in samples for gap, _ in sample.gaps), default=None
        ),
        "answer_tokens_per_s": _ratio(answer, seconds),
        "prompt_tokens_per_s": _ratio(prompt, seconds),
        "requests_per_s": _ratio(len(samples), seconds),
        "retractions": sum(sample.retractions for sample in samples),
    }


def summarize(side: Side) -> dict[str, Any]:
    """Figures of one server, whole and by pass and workload, with its counters."""
    samples = side.samples
    passes = sorted({sample.repeat for sample in samples})
    kinds = sorted({sample.kind for sample in samples})
    whole = figures(samples, side.clock_s)
    return whole | {
        "counters": _counters(side),
        "counters_up_to_request": side.marks[-1].requests if side.marks else 0,
        "by_pass": [
            _part([sample for sample in samples if sample.repeat == repeat])
            for repeat in passes
        ],
        "by_workload": {
            kind: _part([sample for sample in samples if sample.kind == kind])
            for kind in kinds
        },
    }


def compare(first: Side, second: Side) -> dict[str, Any]:
    """`first` against `second` on the requests that both answered.

    Ratios are first to second. `None` where either has no such figure.
    """
    ours = {sample.number: sample for sample in first.samples}
    theirs = {sample.number: sample for sample in second.samples}
    both = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[number], theirs[number]) for number in both]
    figures_of = [figures([pair[at] for pair in pairs], 0) for at in (0, 1)]
    same_prompts = [(a, b) for a, b in pairs if a.prompt_digest == b.prompt_digest]
    ratios = [a.ttft_s / b.ttft_s for a, b in pairs if b.ttft_s]
    return {
        "requests": len(both),
        "cached_share": _of(figures_of, "cached_share"),
        "ttft_s": {name: _of(figures_of, "ttft_s", name) for name in _SHOWN},
        "inter_token_s": {
            name: _of(figures_of, "inter_token_s", name) for name in _SHOWN
        },
        "ttft_request_by_request": median_with_range(ratios),
        "answer_tokens_per_s": _ratio(_rate(first), _rate(second)),
        "equal_prompts": len(same_prompts),
        "equal_answers_to_equal_prompts": sum(
            a.output_digest == b.output_digest for a, b in same_prompts
        ),
    }


_SHOWN = ("mean", *QUANTILES)


def _part(samples: Sequence[Sample]) -> dict[str, Any]:
    """Figures of some requests; without rates, for others ran at the same time."""
    found = figures(samples, 0)
    rates = ("seconds", "answer_tokens_per_s", "prompt_tokens_per_s", "requests_per_s")
    return {name: value for name, value in found.items() if name not in rates}


def _counters(side: Side) -> dict[str, float | None]:
    if not side.marks:
        return {}
    return counters.growth(side.marks[0].counters, side.marks[-1].counters)


def _is_beyond(sample: Sample) -> bool:
    """More was served than this run had sent: the server was not empty before."""
    return sample.cached_tokens >= sample.reusable_tokens + GRAIN_TOKENS


def _rate(side: Side) -> float | None:
    tokens = sum(sample.answer_tokens for sample in side.samples)
    return _ratio(tokens, side.clock_s)


def _of(pair: Sequence[Mapping[str, Any]], *path: str) -> float | None:
    values: list[Any] = list(pair)
    for name in path:
        values = [value[name] for value in values]
    return _ratio(*values)


def _ratio(first: float | None, second: float | None) -> float | None:
    return first / second if first is not None and second else None
