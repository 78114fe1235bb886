"""The breaker: every rank asks the daemon, or none does, from the same step on.

Ranks are threads here, and each collective is a barrier: a rank that makes one more
or one fewer than the others ends the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa import metrics
from sglang_qsa.tiers.lmcache.breaker import Breaker
from tests.tiers.lmcache.metric import value
from tests.tiers.lmcache.small_daemon import Lookup, SmallDaemon

RANKS = 3
BARRIER_TIMEOUT_S = 5.0

pytestmark = pytest.mark.usefixtures("sglang_runtime")


class Group:
    """Collectives of the ranks of one server."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=BARRIER_TIMEOUT_S)
        self._values = [0] * ranks

    def reduce(
        self, rank: int, number: int, how: Callable[[Sequence[int]], int]
    ) -> int:
        self._values[rank] = number
        self._barrier.wait()
        result = how(self._values)
        self._barrier.wait()
        return result


@dataclass
class RankConnector(SmallDaemon):
    """One rank's connector; each has its own view of the same daemon."""

    group: Group = field(default_factory=lambda: Group(1))
    rank: int = 0
    server_url: str = "tcp://nowhere:1"
    suspicions: list[str] = field(default_factory=list)

    @property
    def is_lookup_leader(self) -> bool:
        return self.rank == 0

    @property
    def health(self) -> Any:
        return SimpleNamespace(suspect=self.suspicions.append)

    def _sync_success(self, success: bool) -> bool:
        return bool(self.group.reduce(self.rank, int(success), min))

    def _sync_leader_int(self, number: int) -> int:
        return self.group.reduce(self.rank, number, max)

    def ready_prefix_count(self, operations: list[str]) -> int:
        return self.group.reduce(self.rank, super().ready_prefix_count(operations), min)

    def poll_unguarded_lookup(self, lookup: Lookup) -> int | None:
        """The leader asks; all take its answer."""
        hit = super().poll_unguarded_lookup(lookup) if self.is_lookup_leader else None
        shared = self.group.reduce(self.rank, -1 if hit is None else hit, max)
        lookup.total_hit_tokens = None if shared < 0 else shared
        return lookup.total_hit_tokens


class Server:
    """The ranks of one server, stepped together."""

    def __init__(self, *, backoff_s: float = 0.0, **fault: Any) -> None:
        # Really each rank is a process with metrics of its own.
        metrics.gauge("sglang_qsa_tier_usable", 0, store="lmcache")
        group = Group(RANKS)
        # Ranks get their answers at different times.
        self.connectors = [
            RankConnector(group=group, rank=rank, polls_per_answer=rank + 2, **fault)
            for rank in range(RANKS)
        ]
        self.breakers = [
            Breaker(connector, backoff_s=backoff_s)  # type: ignore[arg-type]
            for connector in self.connectors
        ]
        self._pool = ThreadPoolExecutor(RANKS)

    def step(self, *ready: bool) -> set[bool]:
        """One safe point on every rank; what they then think of the daemon."""
        views = ready or (True,) * RANKS
        updates = [
            self._pool.submit(breaker.update, ready=view)
            for breaker, view in zip(self.breakers, views, strict=True)
        ]
        for update in updates:
            update.result(timeout=2 * BARRIER_TIMEOUT_S)
        return {breaker.usable for breaker in self.breakers}

    def step_until_usable(self, limit: int = 200) -> int:
        for number in range(1, limit + 1):
            usable = self.step()
            assert len(usable) == 1, "ranks disagree"
            if usable == {True}:
                return number
        return 0


def test_starts_open_and_closes_after_a_canary() -> None:
    server = Server()
    assert {breaker.usable for breaker in server.breakers} == {False}
    assert server.step_until_usable() > 3
    assert value("sglang_qsa_tier_usable") == 1
    assert not any(connector.open_requests for connector in server.connectors)


def test_ranks_try_one_canary() -> None:
    """Another salt on each rank would be three prefixes, each with a third missing."""
    server = Server()
    assert server.step_until_usable()
    (salts,) = {frozenset(connector.salts) for connector in server.connectors}
    assert len(salts) == 1


@pytest.mark.parametrize("rank", range(RANKS))
def test_doubt_of_one_rank_opens_it_for_all(rank: int) -> None:
    server = Server()
    assert server.step_until_usable()
    assert server.step(*(other != rank for other in range(RANKS))) == {False}
    assert value("sglang_qsa_tier_usable") == 0
    assert all(len(connector.suspicions) == 1 for connector in server.connectors)
    assert server.step_until_usable()


def test_doubt_in_the_middle_of_a_canary_starts_it_over() -> None:
    server = Server()
    for _ in range(3):
        assert server.step() == {False}
    assert server.step(True, False, True) == {False}
    assert not any(connector.open_requests for connector in server.connectors)
    assert server.step_until_usable()


def test_failed_canary_is_tried_again_after_a_pause() -> None:
    server = Server(backoff_s=3600.0, loses=True)
    assert not server.step_until_usable()
    tried = [connector.lookups for connector in server.connectors]
    assert all(tried)
    for _ in range(20):
        assert server.step() == {False}
    assert [connector.lookups for connector in server.connectors] == tried


def test_merging_daemon_is_never_used() -> None:
    assert not Server(merges_groups=True).step_until_usable()


def test_retired_is_for_good() -> None:
    server = Server()
    assert server.step_until_usable()
    for breaker in server.breakers:
        breaker.retire("a test")
    assert value("sglang_qsa_tier_usable") == 0
    assert not server.step_until_usable(limit=50)
