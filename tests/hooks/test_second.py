"""Two states of one forward: both are found, neither is lost, no slot stays behind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from sglang_qsa.boundary import Grid
from sglang_qsa.hooks.second import Part, reserve
from sglang_qsa.tiers.tree import AdmittedRadixCache
from tests.pools import PAGE_TOKENS, build_pools
from tests.scheduling import (
    CONTEXT_TOKENS,
    PAGES,
    SLOTS,
    Forward,
    Scheduling,
    following,
)

pytestmark = pytest.mark.usefixtures("applied")


@pytest.fixture(autouse=True)
def two_a_forward() -> Iterator[None]:
    with following(Grid(snapshots=2)):
        yield


def server(**facts: Any) -> Scheduling:
    return Scheduling(tree=AdmittedRadixCache, **facts)


def text(tokens: int, seed: int = 0) -> list[int]:
    source = random.Random(f"{seed}")
    return [source.randrange(1 << 20) for _ in range(tokens)]


FIRST, SHARED = text(4000), text(4000)[:3072]
FORKED = SHARED + text(1928, 1)


def prefill_fork(
    scheduling: Scheduling, *, ends_at_once: bool = False, kept: bool = True
) -> list[Forward]:
    scheduling.prefill(FIRST)
    return scheduling.prefill(FORKED, ends_at_once=ends_at_once, kept=kept)


def assert_no_slot_is_lost(scheduling: Scheduling, slots: int = SLOTS) -> None:
    scheduling.evict_states()
    assert scheduling.pools.requests.mamba_allocator.available_size() == slots


def found(scheduling: Scheduling, tokens: Sequence[int]) -> int:
    length, depth = scheduling.found(tokens)
    assert length == depth, "the state is that of another depth"
    return length


def refused() -> float:
    labels = {"result": "refused"}
    return REGISTRY.get_sample_value("sglang_qsa_checkpoints_total", labels) or 0.0


@pytest.mark.parametrize("ends_at_once", [False, True])
def test_branch_and_anchor_of_one_forward(ends_at_once: bool) -> None:
    scheduling = server()
    forwards = prefill_fork(scheduling, ends_at_once=ends_at_once)
    assert [(f.depth, f.second) for f in forwards] == [(4992, 3072)]
    assert found(scheduling, SHARED + text(100, 2)) == 3072
    assert found(scheduling, FORKED) == 4992
    assert_no_slot_is_lost(scheduling)


def test_a_rung_beside_the_anchor() -> None:
    scheduling = server()
    assert [(f.depth, f.second) for f in scheduling.prefill(FIRST + text(3000, 5))] == [
        (6976, 5120)
    ]
    assert found(scheduling, (FIRST + text(3000, 5))[:6000]) == 5120


def test_the_same_branch_twice_keeps_one_state() -> None:
    """As where two requests of a batch leave the same prompt at the same place."""
    scheduling = server()
    scheduling.prefill(FIRST)
    requests = [scheduling.start(SHARED + text(900, seed)) for seed in (1, 2)]
    assert [request.forwards[0].second for request in requests] == [3072, 3072]
    for request in requests:
        request.publish()
    for request in requests:
        request.end()
    assert found(scheduling, SHARED + text(100, 3)) == 3072
    assert_no_slot_is_lost(scheduling)


@pytest.mark.parametrize("chunk_tokens", [256, 8192])
def test_every_state_lies_under_its_own_key(chunk_tokens: int) -> None:
    """Prompts that share beginnings, at random, published or not, with little room."""
    source = random.Random(11)
    scheduling = server(chunk_tokens=chunk_tokens)
    sent: list[list[int]] = [[]]
    seconds = 0
    for seed in range(50):
        kept = source.choice(sent)
        prompt = kept[: source.randrange(len(kept) + 1)]
        prompt = prompt + text(source.randrange(1, 900), seed)
        forwards = scheduling.prefill(
            prompt,
            ends_at_once=source.random() < 0.3,
            kept=source.random() < 0.9,
        )
        seconds += sum(forward.second is not None for forward in forwards)
        sent.append(prompt)
        for other in source.sample(sent, min(8, len(sent))):
            found(scheduling, other or prompt)
    assert seconds > 1
    assert_no_slot_is_lost(scheduling)


@pytest.mark.parametrize("missing", list(Part))
def test_a_state_that_no_forward_filled_is_not_published(missing: Part) -> None:
    scheduling = server(parts=set(Part) - {missing})
    before = refused()
    prefill_fork(scheduling)
    assert refused() == before + 1
    assert found(scheduling, SHARED + text(100, 2)) < 3072
    assert found(scheduling, FORKED) == 4992
    assert_no_slot_is_lost(scheduling)


def test_an_aborted_request_gives_its_slot_back() -> None:
    scheduling = server()
    assert prefill_fork(scheduling, kept=False)[-1].second == 3072
    assert found(scheduling, SHARED + text(100, 2)) < 3072
    assert_no_slot_is_lost(scheduling)


def test_a_state_left_unpublished_gives_its_slot_to_the_next_forward() -> None:
    scheduling = server()
    scheduling.prefill(FIRST)
    running = scheduling.start(FORKED)
    again = scheduling.forward(running.req)
    assert running.forwards == [again]
    assert again.second == 3072
    running.publish()
    running.end()
    assert_no_slot_is_lost(scheduling)


@pytest.mark.parametrize("slots", [4, 5, 6, 7, 9])
def test_with_few_slots_the_anchor_comes_first(slots: int) -> None:
    pools = build_pools(pages=PAGES, slots=slots, context_tokens=CONTEXT_TOKENS)
    scheduling = server(pools=pools)
    for seed in range(12):
        prompt = SHARED + text(500 + 64 * seed, seed)
        scheduling.prefill(prompt)
        assert found(scheduling, prompt) > 3072 + PAGE_TOKENS
    assert_no_slot_is_lost(scheduling, slots)


def test_a_session_keeps_to_one_state() -> None:
    scheduling = server()
    scheduling.prefill(FIRST)
    (forward,) = scheduling.prefill(FORKED, session_id="s")
    assert (forward.depth, forward.second) == (4992, None)


def test_a_request_that_the_tree_does_not_take_gets_no_slot() -> None:
    barred = SimpleNamespace(
        session=None, session_id=None, skip_radix_cache_insert=True
    )
    assert not reserve(SimpleNamespace(), barred, 3072)
