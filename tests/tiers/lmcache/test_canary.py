"""Verdicts of the canary about daemons that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_qsa.tiers.lmcache.canary import Canary, CanaryResult, Verdict

CHUNK = 64
STEPS = 10_000


@dataclass
class Lookup:
    request_id: str
    tokens: list[int]
    total_hit_tokens: int | None = None
    locks_held: bool = False
    lock_start: int = 0


@dataclass
class SmallDaemon:
    """A connector and its daemon: two chunks, one state, answers after some polls."""

    merges_groups: bool = False
    accepts_store: bool = True
    store_succeeds: bool = True
    loses: bool = False
    commits_after_lookups: int = 0
    polls_per_answer: int = 3

    chunk_size: int = CHUNK
    stored: list[int] | None = None
    polls: int = 0
    lookups: int = 0
    open_requests: set[str] = field(default_factory=set)
    locked: set[str] = field(default_factory=set)
    salts: set[str] = field(default_factory=set)

    def build_cache_salt(self, salt: str | None, extra: str | None) -> str:
        return f"{salt}+{extra}"

    def block_indices(self, *, tokens: int, first_page: int, slot: int) -> Any:
        assert first_page > 0
        assert slot > 0
        return [tokens]

    def submit_unguarded_store(
        self, request: str, tokens: list[int], indices: Any, *, cache_salt: str
    ) -> str | None:
        assert indices == [len(tokens)]
        self.open_requests.add(request)
        self.salts.add(cache_salt)
        self.stored = tokens
        return "store" if self.accepts_store else None

    def ready_prefix_count(self, operations: list[str]) -> int:
        return self._answered() * len(operations)

    def complete_store(self, _operation: str) -> bool:
        return self.store_succeeds

    def submit_unguarded_lookup(
        self, request: str, tokens: list[int], *, cache_salt: str
    ) -> Lookup:
        assert request not in self.open_requests
        self.open_requests.add(request)
        self.salts.add(cache_salt)
        self.lookups += 1
        return Lookup(request, tokens)

    def poll_unguarded_lookup(self, lookup: Lookup) -> int | None:
        if not self._answered():
            return None
        lookup.total_hit_tokens = self._found(lookup.tokens)
        lookup.locks_held = lookup.total_hit_tokens > 0
        if lookup.locks_held:
            self.locked.add(lookup.request_id)
        return lookup.total_hit_tokens

    def free_lookup_locks(self, request: str, *, start: int, end: int) -> None:
        assert request in self.open_requests
        assert start == 0
        assert end > 0
        self.locked.discard(request)

    def finish_request(self, request: str) -> None:
        self.open_requests.discard(request)

    def _answered(self) -> bool:
        self.polls += 1
        return self.polls % self.polls_per_answer == 0

    def _found(self, tokens: list[int]) -> int:
        committed = self.lookups > self.commits_after_lookups
        if self.loses or not committed or self.stored is None:
            return 0
        if tokens == self.stored or self.merges_groups:
            return len(tokens)
        return 0


def run(daemon: SmallDaemon) -> tuple[CanaryResult, Canary]:
    """Advance a canary to its end, as the scheduler does."""
    canary = Canary(daemon, nonce=5)  # type: ignore[arg-type]
    for _ in range(STEPS):
        result = canary.advance()
        if result is not None:
            return result, canary
    raise AssertionError("the canary does not end")


@pytest.mark.parametrize(
    ("daemon", "verdict"),
    [
        (SmallDaemon(), Verdict.SOUND),
        (SmallDaemon(merges_groups=True), Verdict.MERGED_GROUPS),
        (SmallDaemon(accepts_store=False), Verdict.STORE_REFUSED),
        (SmallDaemon(store_succeeds=False), Verdict.STORE_REFUSED),
        (SmallDaemon(loses=True), Verdict.NOT_FOUND),
        (SmallDaemon(commits_after_lookups=5), Verdict.SOUND),
    ],
    ids=["sound", "merged", "not accepted", "failed", "lost", "slow commit"],
)
def test_verdict(daemon: SmallDaemon, verdict: Verdict) -> None:
    result, _ = run(daemon)
    assert result.verdict is verdict


def test_slow_commit_does_not_hide_merged_groups() -> None:
    """A miss proves nothing before the store can be found at all."""
    for lookups in range(8):
        result, _ = run(SmallDaemon(merges_groups=True, commits_after_lookups=lookups))
        assert result.verdict is Verdict.MERGED_GROUPS


def test_sound_verdict_carries_the_locked_look_up() -> None:
    result, canary = run(SmallDaemon())
    assert result.lookup.tokens == canary.tokens
    assert result.lookup.total_hit_tokens == 2 * CHUNK


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"merges_groups": True},
        {"accepts_store": False},
        {"loses": True},
        {"commits_after_lookups": 4},
    ],
    ids=repr,
)
def test_close_leaves_no_session_and_no_lock(fault: dict[str, Any]) -> None:
    """The daemon keeps the locks of a session that has ended (lmcache 0.5.6)."""
    daemon = SmallDaemon(**fault)
    _, canary = run(daemon)
    assert daemon.open_requests
    canary.close()
    assert not daemon.open_requests
    assert not daemon.locked


def test_close_leaves_locks_alone_that_a_load_has_consumed() -> None:
    daemon = SmallDaemon()
    result, canary = run(daemon)
    result.lookup.locks_held = False
    canary.close()
    assert daemon.locked == {result.lookup.request_id}


def test_close_in_the_middle_leaves_no_session() -> None:
    daemon = SmallDaemon(polls_per_answer=4)
    canary = Canary(daemon, nonce=1)  # type: ignore[arg-type]
    for _ in range(6):
        assert canary.advance() is None
    canary.close()
    assert not daemon.open_requests


def test_waits_without_blocking() -> None:
    """A daemon that does not answer costs a step each time, never a wait."""
    canary = Canary(SmallDaemon(polls_per_answer=1000), nonce=1)  # type: ignore[arg-type]
    assert [canary.advance() for _ in range(5)] == [None] * 5


@pytest.mark.parametrize("part", ["tokens", "salts"])
def test_trials_do_not_meet(part: str) -> None:
    """Each nonce has its own salt and its own tokens."""
    get: dict[str, Callable[[SmallDaemon, Canary], object]] = {
        "tokens": lambda _daemon, canary: tuple(canary.tokens),
        "salts": lambda daemon, _canary: frozenset(daemon.salts),
    }
    seen = set()
    for nonce in (0, 1, 2**48 - 1):
        daemon = SmallDaemon()
        canary = Canary(daemon, nonce)  # type: ignore[arg-type]
        while canary.advance() is None:
            pass
        seen.add(get[part](daemon, canary))
    assert len(seen) == 3


def test_tokens_fit_the_daemon_s_hash() -> None:
    """It packs token ids as 32-bit numbers."""
    tokens = Canary(SmallDaemon(), nonce=2**48 - 1).tokens  # type: ignore[arg-type]
    assert len(tokens) == 2 * CHUNK
    assert all(0 <= token < 2**31 for token in tokens)
