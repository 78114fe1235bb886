"""A server whose records are the plugin's, over the small model's pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from benchmarks.host_server import Server, assert_same, prompt
from sglang_qsa.hooks import active
from sglang_qsa.tiers.tree import AdmittedRadixCache
from tests.pools import PAGE_TOKENS, build_pools, small_layout


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    """Needs the fixture `sglang_runtime`."""
    server = Server(**{"tree": AdmittedRadixCache, **options})
    active.identify(small_layout(draft=server.draft))
    try:
        server.open(
            build_pools(
                pages=server.pages,
                slots=server.slots,
                draft=server.draft,
                device=server.device,
            )
        )
        yield server
    finally:
        active.identify(None)


def begin_forward(server: Server, req: object) -> None:
    """What a forward does first with the slots of its requests: clears, and copies."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.model_runner import ModelRunner

    batch = ScheduleBatch.__new__(ScheduleBatch)
    batch._collect_deferred_mamba_cow_and_clear([req])
    forward = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        mamba_clear_indices=batch.mamba_clear_indices,
        mamba_cow_src_indices=batch.mamba_cow_src_indices,
        mamba_cow_dst_indices=batch.mamba_cow_dst_indices,
    )
    runner = SimpleNamespace(
        req_to_token_pool=server.pools.requests, is_draft_worker=False
    )
    ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(runner, forward)


def assert_comes_back_elsewhere(server: Server, pages: int) -> None:
    """A prefix through backup, eviction, poison and load: to its node and to the
    request that asked, in other pages and slots."""
    wanted = server.prefill(prompt(pages), seed=1)
    server.back_up()
    server.evict()
    server.wipe()
    server.rows(3 * PAGE_TOKENS)
    server.slot()
    loaded, req = server.load(prompt(pages))
    assert loaded == pages * PAGE_TOKENS
    assert_same(server.served(prompt(pages)), wanted)
    state = server.state_of(req)
    assert_same(state, {name: wanted[name] for name in state})
