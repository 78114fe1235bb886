"""A daemon that hangs while a rank uses it: misses in time, and nothing freed early.

No other request exists here, so what the scheduler thread waits is what is measured.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sglang_qsa.demo.daemon import LMCacheDaemon
from tests.pools import PAGE_TOKENS
from tests.tiers.lmcache.left_behind import nothing_left_behind
from tests.tiers.lmcache.metric import counted, value
from tests.tiers.lmcache.rank import OPTIONS, Rank, Request, qsa_rank, until

TIMEOUT_S = 1.0
SLACK_S = 1.8
SLOTS = 8
TOKENS = [*range(900_000, 900_000 + 2 * PAGE_TOKENS)]

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("sglang_runtime")]


@pytest.fixture
def hasty(daemon: LMCacheDaemon) -> Iterator[Rank]:
    """A rank that waits for nothing long."""
    options = dataclasses.replace(
        OPTIONS,
        lookup_timeout_s=TIMEOUT_S,
        retrieve_timeout_s=TIMEOUT_S,
        heartbeat_interval_s=0.1,
        recovery_backoff_s=0.1,
    )
    with qsa_rank(daemon.client_config, options=options) as rank:
        yield rank


@contextmanager
def frozen(daemon: LMCacheDaemon) -> Iterator[None]:
    daemon.freeze()
    try:
        yield
    finally:
        daemon.thaw()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def scheduled(rank: Rank, condition: Callable[[], bool], what: str) -> None:
    """Let the scheduler pass its safe point until `condition` holds."""

    def passed() -> bool | None:
        rank.cache.check_hicache_events()
        return condition() or None

    until(passed, what)


def recover(rank: Rank) -> None:
    scheduled(rank, lambda: rank.connector.usable, "recovery")
    assert value("sglang_qsa_tier_usable") == 1


def test_frozen_at_look_up(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """Case 27: a miss after the time-out; then nothing is asked of it any more."""
    with frozen(daemon), within(TIMEOUT_S + SLACK_S):
        with counted("sglang_qsa_lookups_total", result="timeout"):
            assert hasty.look_up("late", TOKENS).total_hit_tokens == 0
        hasty.cache.check_hicache_events()
        assert not hasty.connector.usable
        assert value("sglang_qsa_tier_usable") == 0
        with counted("sglang_qsa_lookups_total", result="closed"), within(0.1):
            assert hasty.look_up("closed", TOKENS).total_hit_tokens == 0
        with counted("sglang_qsa_stores_total", result="closed"):
            assert hasty.connector.submit_store("closed", TOKENS, []) is None
    recover(hasty)


def test_late_look_up_leaves_nothing_locked(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """Locked objects cannot be evicted for minutes; a slow daemon would fill up."""
    hasty.store("stored", TOKENS, pages=[3, 7], slot=1)
    with nothing_left_behind(daemon):
        with frozen(daemon):
            assert hasty.look_up("late", TOKENS).total_hit_tokens == 0
            hasty.connector.finish_request("late")
        recover(hasty)


def test_frozen_at_retrieve(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """The slots are held until the daemon has answered: it may write to them."""
    hasty.store("stored", TOKENS, pages=[3, 7], slot=1)
    pages = hasty.pools.allocator.available_size()
    slots = hasty.pools.requests.mamba_allocator.available_size()
    request = Request("late")
    hasty.ask(request, TOKENS)
    match = hasty.match(request, TOKENS)
    assert match.host_hit_length == len(TOKENS)
    stalled = value("sglang_qsa_stall_seconds_total")
    with frozen(daemon):
        with (
            counted("sglang_qsa_loads_total", result="timeout"),
            within(TIMEOUT_S + SLACK_S),
        ):
            assert hasty.load_back(request, match) == 0
        assert value("sglang_qsa_stall_seconds_total") - stalled >= TIMEOUT_S
        hasty.cache.check_hicache_events()
        assert hasty.cache.has_pending_cache_operations()
        held = pages - hasty.pools.allocator.available_size()
        assert held == len(TOKENS)
        assert hasty.pools.requests.mamba_allocator.available_size() == slots - 1
        assert request.kv.mamba_pool_idx is None
        assert request.kv.mamba_cow_src_index is None
    scheduled(
        hasty, lambda: not hasty.cache.has_pending_cache_operations(), "a late answer"
    )
    assert hasty.pools.allocator.available_size() == pages
    assert hasty.pools.requests.mamba_allocator.available_size() == slots
    assert value("sglang_qsa_quarantined_loads") == 0
    recover(hasty)
    loaded = value("sglang_qsa_transfer_bytes_total", direction="load")
    assert hasty.resume(Request("again"), [*TOKENS, 0]) == len(TOKENS)
    loaded = value("sglang_qsa_transfer_bytes_total", direction="load") - loaded
    layout = hasty.connector._sglang_kv_adapter.arena.layout
    assert loaded == 2 * layout.page_bytes + layout.checkpoint_bytes


def test_bytes_and_seconds_of_both_directions(hasty: Rank) -> None:
    names = [
        (f"sglang_qsa_transfer_{unit}_total", direction)
        for direction in ("offload", "load")
        for unit in ("bytes", "seconds")
    ]

    def counts() -> list[float]:
        return [value(name, direction=direction) for name, direction in names]

    before = counts()
    tokens = [token + 2 for token in TOKENS]
    hasty.store("timed", tokens, pages=[3, 7], slot=1)
    assert hasty.resume(Request("timed again"), [*tokens, 0]) == len(tokens)
    scheduled(hasty, lambda: counts()[3] > before[3], "the end of the load")
    grown = [now - then for now, then in zip(counts(), before, strict=True)]
    layout = hasty.connector._sglang_kv_adapter.arena.layout
    assert grown[0] == grown[2] == 2 * layout.page_bytes + layout.checkpoint_bytes
    assert 0 < grown[1] < 10
    assert 0 < grown[3] < 10


def test_frozen_at_retrieve_costs_one_time_out(
    daemon: LMCacheDaemon, hasty: Rank
) -> None:
    """Other requests that were looked up before do not wait as well."""
    hasty.store("stored", TOKENS, pages=[3, 7], slot=1)
    requests = [Request(f"late-{number}") for number in range(3)]
    for request in requests:
        hasty.ask(request, TOKENS)
    matches = [hasty.match(request, TOKENS) for request in requests]
    with frozen(daemon), within(TIMEOUT_S + SLACK_S):
        for request, match in zip(requests, matches, strict=True):
            assert match.host_hit_length == len(TOKENS)
            assert hasty.load_back(request, match) == 0
        assert hasty.pools.requests.mamba_allocator.available_size() == SLOTS - 1
    scheduled(
        hasty, lambda: not hasty.cache.has_pending_cache_operations(), "a late answer"
    )
    recover(hasty)


def test_retired_tier_is_not_loaded_from(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """What was looked up before a weight update was computed with other weights."""
    hasty.store("stored", TOKENS, pages=[3, 7], slot=1)
    request = Request("late")
    hasty.ask(request, TOKENS)
    match = hasty.match(request, TOKENS)
    assert match.host_hit_length == len(TOKENS)
    hasty.cache.retire_tier("a test")
    assert hasty.load_back(request, match) == 0
    assert hasty.found("later", TOKENS) == 0
    for _ in range(50):
        hasty.cache.check_hicache_events()
        time.sleep(0.01)
    assert not hasty.connector.usable


def test_frozen_at_store(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """A store is not waited for."""
    tokens = [token + 1 for token in TOKENS]
    with frozen(daemon), within(SLACK_S):
        operation = hasty.connector.submit_store(
            "late",
            tokens,
            hasty.indices([3, 7], 1),
            device_indices_start=0,
            cache_salt="",
        )
        assert not operation.query()
    until(lambda: operation.query() or None, "a late store")
    assert hasty.connector.complete_store(operation)


def test_frozen_at_clear(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """A closed breaker answers at once; the call itself would block."""
    with frozen(daemon):
        hasty.look_up("late", TOKENS)
        hasty.cache.check_hicache_events()
        with within(0.1):
            assert not hasty.connector.clear()
    recover(hasty)


def test_frozen_at_shutdown(daemon: LMCacheDaemon, hasty: Rank) -> None:
    """One time-out for the requests still open, one for taking leave."""
    with frozen(daemon):
        for number in range(8):
            hasty.connector.submit_lookup(
                f"open-{number}", TOKENS, local_hit_tokens=0, cache_salt=""
            )
        with within(2 * TIMEOUT_S + SLACK_S):
            hasty.cache.shutdown()
