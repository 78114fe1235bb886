"""Verdicts of the canary about daemons that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_qsa.tiers.lmcache.canary import Canary, CanaryResult, Verdict
from tests.tiers.lmcache.small_daemon import CHUNK, SmallDaemon

STEPS = 10_000


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
