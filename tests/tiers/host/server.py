"""A server whose records are the plugin's, over the small model's pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.host_server import Server, assert_same, prompt
from sglang_qsa.hooks import active
from tests.pools import PAGE_TOKENS, build_pools, small_layout


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    """Needs the fixture `sglang_runtime`."""
    server = Server(**options)
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
