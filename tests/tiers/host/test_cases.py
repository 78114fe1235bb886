"""Failure cases of host tiers, on the real pools, tree and controller."""

from __future__ import annotations

import pytest

from benchmarks.host_server import POISON, assert_same, prompt
from tests.pools import PAGE_TOKENS
from tests.tiers.host.server import begin_forward, serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")


def test_case_12_what_is_reported_restorable_is_whole() -> None:
    """Four states and forty pages on the host, eight prompts of five pages."""
    with serving(pages=12, slots=3, ratio=3.34) as server:
        pages, states = server.host("kv"), server.host("mamba")
        assert (pages.page_num, states.page_num) == (40, 4)
        prompts = [prompt(5, first=10_000 * n) for n in range(1, 9)]
        wanted = []
        for seed, tokens in enumerate(prompts):
            wanted.append(server.prefill(tokens, seed))
            server.back_up()
        server.evict()
        server.wipe()
        whole = [n for n in range(8) if server.match(prompts[n]).host_hit_length]
        assert whole == [4, 5, 6, 7]
        assert pages.available_size() == (40 - 5 * len(whole)) * PAGE_TOKENS
        for n in whole[:3]:
            loaded, req = server.load(prompts[n])
            assert loaded == 5 * PAGE_TOKENS
            assert_same(server.served(prompts[n]), wanted[n])
            server.release(req)
            server.evict()


def test_case_16_draft_rows_move_with_their_page() -> None:
    with serving(draft=True) as server:
        wanted = server.prefill(prompt(3), seed=7)
        server.back_up()
        server.evict()
        server.wipe()
        server.load(prompt(3))
        served = server.served(prompt(3))
        for name in ("draft_k", "draft_v", "draft_index"):
            assert not (wanted[name][0] == POISON).all()
            assert_same({name: served[name]}, {name: wanted[name]})


@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
def test_case_5_nothing_clears_after_a_load(reused: bool) -> None:
    """The request's slot was another's, whose clear had been put off."""
    with serving(slots=4) as server:
        wanted = server.prefill(prompt(2), seed=5)
        server.back_up()
        server.evict()
        if reused:
            slot = server.slot()
            server.pools.requests.mamba_pool.clear_slots(slot)
            server.pools.requests.mamba_allocator.free(slot)
        _, req = server.load(prompt(2))
        begin_forward(server, req)
        state = server.state_of(req)
        assert_same(state, {name: wanted[name] for name in state})
        assert_same(server.served(prompt(2)), wanted)
