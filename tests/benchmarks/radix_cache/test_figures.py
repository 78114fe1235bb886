"""Figures: percentiles, sources of tokens, growth of counters, ratios."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.radix_cache import counters
from benchmarks.radix_cache.samples import (
    COMPUTED,
    DEVICE,
    EXTERNAL,
    HOST,
    SOURCES,
    STORAGE,
    UNSPLIT,
    Sample,
    read_facts,
    sources_of,
)
from benchmarks.radix_cache.summary import (
    figures,
    median_with_range,
    percentile,
    spread,
    token_gaps,
)
from sglang_qsa.metrics import METRICS

PAGE = """
# TYPE sglang:evicted_tokens counter
sglang:evicted_tokens_total{cache_type="A",tp_rank="0"} 640.0
sglang:evicted_tokens_total{cache_type="A",tp_rank="1"} 640.0
# TYPE sglang:load_back_bytes counter
sglang:load_back_bytes_total{tp_rank="0"} 1e+06
sglang:load_back_bytes_total{tp_rank="1"} 2e+06
# TYPE sglang_qsa_store_bytes counter
sglang_qsa_store_bytes_total{direction="read"} 5.0
sglang_qsa_store_bytes_total{direction="written"} 7.0
# TYPE sglang:token_usage gauge
sglang:token_usage 0.5
"""


def sample(number: int = 0, **changes: Any) -> Sample:
    facts: dict[str, Any] = {
        "number": number,
        "repeat": 0,
        "kind": "chat",
        "session": 0,
        "prompt_tokens": 200,
        "answer_tokens": 5,
        "reusable_tokens": 128,
        "sources": dict.fromkeys(SOURCES, 0) | {DEVICE: 128, COMPUTED: 72},
        "started_s": 0.0,
        "ttft_s": 0.1,
        "seconds": 0.5,
        "gaps": [(0.1, 1), (0.3, 3)],
        "prompt_digest": 1,
        "output_digest": 2,
        "retractions": 0,
    }
    return Sample(**(facts | changes))


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (0.99, 3.97), (1, 4)]
)
def test_percentiles_lie_between_the_nearest_values(
    share: float, expected: float
) -> None:
    assert percentile([4, 1, 3, 2], share) == pytest.approx(expected)


def test_nothing_measured_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert spread([])["p99"] is None
    assert median_with_range([]) == {"median": None, "low": None, "high": None}


def test_the_median_has_a_range_that_narrows() -> None:
    few, many = (
        median_with_range([at / count for at in range(count)]) for count in (10, 1000)
    )
    widths = [found["high"] - found["low"] for found in (few, many)]  # type: ignore[operator]
    assert widths[1] < widths[0] / 5


def test_tokens_that_came_together_share_their_gap() -> None:
    assert token_gaps([sample()]) == pytest.approx([0.1] * 4)


def test_sources_sum_up_to_the_prompt() -> None:
    meta = {
        "prompt_tokens": 500,
        "cached_tokens": 448,
        "cached_tokens_details": {"device": 64, "host": 128, "storage": 256},
    }
    tier_of = read_facts({"version": "0"}).tier_of
    found = sources_of(meta, tier_of)
    assert [found[tier] for tier in (DEVICE, HOST, STORAGE)] == [64, 128, 256]
    assert found[COMPUTED] == 52
    assert sum(found.values()) == 500


def test_lmcache_and_linkers_are_external() -> None:
    meta = {
        "prompt_tokens": 500,
        "cached_tokens": 448,
        "cached_tokens_details": {"device": 64, "host": 128, "storage": 256},
    }
    lmcache = read_facts({"version": "0", "enable_lmcache": True})
    linker = read_facts({"version": "0", "enable_unified_cache_external_linker": True})
    assert sources_of(meta, lmcache.tier_of)[EXTERNAL] == 256
    assert sources_of(meta, linker.tier_of)[EXTERNAL] == 128


def test_cached_tokens_without_a_tier_are_not_given_one() -> None:
    meta = {"prompt_tokens": 500, "cached_tokens": 448, "cached_tokens_details": None}
    found = sources_of(meta, read_facts({"version": "0"}).tier_of)
    assert found[UNSPLIT] == 448
    assert found[DEVICE] == 0
    assert sample(sources=found).deepest == UNSPLIT


def test_facts_name_the_tiers_of_a_server() -> None:
    facts = read_facts(
        {
            "version": "0.5.23",
            "radix_cache_backend": "sglang_qsa",
            "enable_hierarchical_cache": True,
            "hicache_storage_backend": "file",
            "max_req_input_len": 90,
            "max_total_num_tokens": 80,
        }
    )
    assert list(facts.tiers) == [DEVICE, HOST, STORAGE]
    assert facts.most_tokens == 80
    assert not read_facts({"version": "0", "disable_radix_cache": True}).tiers


def test_ranks_count_the_same_tokens_but_bytes_of_their_own() -> None:
    found = counters.read(PAGE)
    assert found["sglang:evicted_tokens_total"] == 640
    assert found["sglang:load_back_bytes_total"] == 3e6
    assert found["sglang_qsa_store_bytes_total (read)"] == 5
    assert "sglang:token_usage" not in found


def test_counters_that_are_not_reported_are_missing_not_zero() -> None:
    before, after = counters.read(""), counters.read(PAGE)
    grown = counters.growth(before, after)
    assert grown["sglang:evicted_tokens_total"] == 640
    assert grown["sglang:load_back_tokens_total"] is None
    assert counters.growth(after, after)["sglang:evicted_tokens_total"] == 0
    assert counters.growth(after, before)["sglang:evicted_tokens_total"] is None


def test_a_counter_that_fell_is_missing() -> None:
    grown = counters.growth(
        {"sglang:evicted_tokens_total": 9}, {"sglang:evicted_tokens_total": 4}
    )
    assert grown["sglang:evicted_tokens_total"] is None


def test_series_are_named_by_their_labels() -> None:
    described = counters.describe("sglang_qsa_store_bytes_total (read)")
    assert described == ("store (read)", "bytes")


def test_every_counter_of_the_plugin_is_shown() -> None:
    shown = {counter.name: counter for counter in counters.SHOWN}
    for metric in METRICS:
        assert (metric.name in shown) == (metric.kind == "counter")
    assert shown["sglang_qsa_loaded_tokens_total"].unit == "tokens"
    assert shown["sglang_qsa_lookups_total"].unit == "events"


def test_figures_of_some_requests() -> None:
    warm = sample(1, sources=dict.fromkeys(SOURCES, 0) | {HOST: 192, COMPUTED: 8})
    found = figures([sample(), warm], seconds=2)
    assert found["tokens_by_source"][HOST] == 192
    assert found["cached_share"] == pytest.approx(0.8)
    assert found["answer_tokens_per_s"] == 5
    assert set(found["ttft_s_by_deepest_source"]) == {DEVICE, HOST}
    assert found["longest_gap_s"] == 0.3


def test_a_server_that_was_not_empty_is_seen() -> None:
    page_more = dict.fromkeys(SOURCES, 0) | {DEVICE: 192, COMPUTED: 8}
    found = figures([sample(), sample(1, sources=page_more)], seconds=1)
    assert found["requests_beyond_reusable"] == 1
