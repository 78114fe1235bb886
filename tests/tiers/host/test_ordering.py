"""Nothing clears, overwrites or hands out what a copy was ordered into or reads.

Copies here are done when they are submitted, so what they could meet happens between
the decision and the submission.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.host_server import POISON, Server, a_request, assert_same, prompt
from sglang_qsa.tiers.host.engine import PartLoading
from tests.pools import PAGE_TOKENS
from tests.tiers.host.server import begin_forward, serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")

POLICIES = pytest.mark.parametrize("policy", ["write_through", "write_back"])


def take_everything(server: Server) -> None:
    """Evict what can be evicted, then write over every page, slot and record that
    another request could get."""
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    server.evict()
    pages, states = server.host("kv"), server.host("mamba")
    server.cache.evict_host(pages.size)
    server.cache.evict_host(states.size, ComponentType.MAMBA)
    for pool in (pages, states):
        if free := pool.available_size():
            taken = pool.alloc(free)
            pool.kv_buffer[taken[:: pool.page_size] // pool.page_size] = POISON
            pool.free(taken)
    allocators = server.pools.allocator, server.pools.requests.mamba_allocator
    rows, slots = (free.alloc(free.available_size()) for free in allocators)
    server.poison(rows, slots)
    for allocator, taken in zip(allocators, (rows, slots), strict=True):
        allocator.free(taken)


def submit(server: Server) -> None:
    server.controller.layer_done_counter.set_consumer(
        server.cache.ready_to_load_host_cache()
    )


@POLICIES
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_an_ordered_load_keeps_its_pages_slots_and_records(
    policy: str, split: bool
) -> None:
    """A prefix that shares half of the node divides it meanwhile."""
    with serving(policy=policy) as server:
        wanted = server.prefill(prompt(4), seed=1)
        server.back_up()
        server.evict()
        server.wipe()
        loaded, req = server.queue_load(prompt(4))
        assert loaded == 4 * PAGE_TOKENS
        if split:
            server.match(prompt(2) + prompt(1, first=20_000))
        take_everything(server)
        submit(server)
        begin_forward(server, req)
        assert_same(server.served(prompt(4)), wanted)
        state = server.state_of(req)
        assert_same(state, {name: wanted[name] for name in state})
        server.cache.loading_check()
        server.release(req)
        server.evict()
        assert server.match(prompt(4)).device_prefix_len == 0


@pytest.mark.parametrize("acknowledged", [False, True], ids=["under way", "done"])
def test_a_backup_keeps_its_pages_slots_and_records(acknowledged: bool) -> None:
    """Until it is acknowledged, not only until it is submitted."""
    with serving() as server:
        wanted = server.prefill(prompt(4), seed=1)
        if acknowledged:
            server.cache.flush_pending_backups()
        take_everything(server)
        assert_same(server.served(prompt(4)), wanted)
        server.back_up()
        server.evict()
        assert server.match(prompt(4)).device_prefix_len == 0
        server.wipe()
        server.load(prompt(4))
        assert_same(server.served(prompt(4)), wanted)


def test_a_load_that_finds_no_room_orders_nothing() -> None:
    with serving() as server:
        server.prefill(prompt(4), seed=1)
        server.back_up()
        server.evict()
        rows, slots = server.pools.allocator, server.pools.requests.mamba_allocator
        server.rows(rows.available_size() - 3 * PAGE_TOKENS)
        free = rows.available_size(), slots.available_size()
        loaded, req = server.queue_load(prompt(4))
        assert loaded == 0
        assert not server.controller.load_queue
        assert not req.kv.holds_mamba
        assert (rows.available_size(), slots.available_size()) == free


def test_a_copy_staged_before_storage_was_asked_again() -> None:
    """The request was matched with a state on the device, and waited on: storage then
    had more, which a load brings into the request's slot."""
    with serving() as server:
        trunk, whole = prompt(2), prompt(4)
        server.prefill(trunk, seed=1)
        wanted = server.prefill(whole, seed=2)
        server.back_up()
        server.evict()
        server.wipe()
        _, first = server.load(trunk)
        server.release(first)
        slots = server.pools.requests.mamba_allocator
        free = slots.available_size()
        req = a_request()
        assert server.match(trunk, req).device_prefix_len == len(trunk)
        assert req.kv.mamba_cow_src_index is not None
        server.queue_load(whole, req)
        submit(server)
        begin_forward(server, req)
        state = server.state_of(req)
        assert_same(state, {name: wanted[name] for name in state})
        server.release(req)
        assert slots.available_size() == free - 1  # the node's


def test_a_copy_staged_of_a_state_that_is_gone() -> None:
    """Nothing is found in the end: the request gets a slot that is cleared."""
    with serving() as server:
        server.prefill(prompt(2), seed=1)
        slots = server.pools.requests.mamba_allocator
        free = slots.available_size()
        req = a_request()
        server.match(prompt(2), req)
        server.back_up()
        server.evict()
        server.match(prompt(2, first=20_000), req)
        assert not req.kv.holds_mamba
        assert req.kv.mamba_cow_src_index is None
        assert slots.available_size() == free + 1


def test_a_state_under_way_is_copied_after_its_last_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two requests of one batch: the second finds what the first one loads."""
    order: list[tuple[str, int]] = []
    with serving() as server:
        wanted = server.prefill(prompt(2), seed=1)
        server.back_up()
        server.evict()
        server.wipe()
        server.queue_load(prompt(2))
        second = a_request()
        server.match(prompt(2), second)
        assert second.kv.mamba_cow_src_index is not None
        submit(server)
        requests = server.pools.requests
        for owner, name in (
            (PartLoading, "wait"),
            (type(requests.mamba_pool), "copy_from"),
        ):
            note(monkeypatch, owner, name, order)
        begin_forward(server, second)
        assert order == [("wait", max(requests.mamba_map)), ("copy_from", 0)]
        state = server.state_of(second)
        assert_same(state, {name: wanted[name] for name in state})


def test_a_flush_waits_for_copies_under_way() -> None:
    """And for those of which the tree has not heard that they are done."""
    from sglang.srt.managers.scheduler import Scheduler

    with serving() as server:
        scheduler = idle(server)
        assert Scheduler.is_fully_idle(scheduler)
        server.prefill(prompt(2), seed=1)
        server.cache.flush_pending_backups()
        assert not Scheduler.is_fully_idle(scheduler)
        server.back_up()
        assert Scheduler.is_fully_idle(scheduler)
        server.evict()
        server.submit_load(prompt(2))
        assert not Scheduler.is_fully_idle(scheduler)
        server.cache.loading_check()
        assert Scheduler.is_fully_idle(scheduler)


def idle(server: Server) -> Any:
    """A scheduler with nothing to do but HiCache's copies."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    nothing: list[Any] = []
    empty = SimpleNamespace(is_empty=lambda: True)
    return SimpleNamespace(
        running_batch=empty,
        last_batch=None,
        chunked_req=None,
        waiting_queue=nothing,
        result_queue=nothing,
        enable_overlap=True,
        enable_hisparse=False,
        enable_hierarchical_cache=True,
        disaggregation_mode=DisaggregationMode.NULL,
        dllm_manager=SimpleNamespace(any_staging_reqs=lambda: False),
        grammar_manager=SimpleNamespace(grammar_queue=nothing),
        tree_cache=server.cache,
        _pp_microbatches_drained=lambda: True,
    )


def note(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    order: list[tuple[str, int]],
) -> None:
    """Write calls of a method down, with the layer that they name."""
    original = getattr(owner, name)

    def noted(self: Any, *arguments: Any) -> Any:
        layer = arguments[0] if isinstance(arguments[0], int) else 0
        order.append((name, layer))
        return original(self, *arguments)

    monkeypatch.setattr(owner, name, noted)
