"""Every byte of a prefix through host memory: backup, eviction, poison, load."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.host_server import assert_same, prompt
from sglang_qsa.tiers.host.engine import RecordController
from tests.pools import PAGE_TOKENS, small_layout
from tests.tiers.host.server import assert_comes_back_elsewhere, serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("pages", [1, 5, 64])
def test_every_plane_comes_back_elsewhere(pages: int, draft: bool) -> None:
    """To the node and to the request that asked, in other pages and slots."""
    with serving(draft=draft) as server:
        assert_comes_back_elsewhere(server, pages)


def test_counted_bytes_are_those_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint for its node and for the request crosses the link once."""
    counted: list[int] = []
    original = RecordController._transfer_num_bytes

    def noted(controller: RecordController, op: Any) -> int:
        counted.append(original(controller, op))
        return counted[-1]

    monkeypatch.setattr(RecordController, "_transfer_num_bytes", noted)
    with serving() as server:
        server.prefill(prompt(5), seed=1)
        server.back_up()
        server.evict()
        server.load(prompt(5))
    layout = small_layout()
    moved = 5 * layout.page.stride_bytes + layout.checkpoint.stride_bytes
    assert counted == [moved, moved]


def test_operations_of_one_submission_are_acknowledged_together() -> None:
    """A checkpoint counts for each place that it goes to."""
    prompts = [prompt(2), prompt(3, first=20_000)]
    with serving() as server:
        for seed, tokens in enumerate(prompts):
            server.prefill(tokens, seed)
        server.cache.flush_pending_backups()
        (backup,) = server.controller.ack_write_queue
        server.cache.writing_check()
        server.evict()
        for tokens in prompts:
            server.queue_load(tokens)
        server.cache.ready_to_load_host_cache()
        (load,) = server.controller.ack_load_queue
        server.cache.loading_check()
        moved = 5 * PAGE_TOKENS
        for ack, states in ((backup, 2), (load, 4)):
            assert len(set(ack.node_ids)) == 2
            assert ack.num_tokens == moved
            assert ack.num_tokens_by_pool == {"kv": moved, "mamba": states}


def test_what_is_forgotten_before_its_submission() -> None:
    with serving() as server:
        server.prefill(prompt(3), seed=1)
        server.cache.reset()
        server.cache.flush_pending_backups()
        assert not server.controller.ack_write_queue
        server.prefill(prompt(2), seed=2)
        server.cache.flush_pending_backups()
        (ack,) = server.controller.ack_write_queue
        assert ack.num_tokens == 2 * PAGE_TOKENS


@pytest.mark.parametrize("policy", ["write_through_selective", "write_back"])
def test_write_policies(policy: str) -> None:
    with serving(policy=policy) as server:
        wanted = server.prefill(prompt(5), seed=2)
        server.prefill(prompt(5), seed=2)  # a second hit is what `selective` waits for
        server.back_up()
        server.evict()
        server.wipe()
        server.rows(2 * PAGE_TOKENS)
        assert server.load(prompt(5))[0] == 5 * PAGE_TOKENS
        assert_same(server.served(prompt(5)), wanted)


def test_prefixes_that_share_pages() -> None:
    """One submission of several nodes; pages come back in the order of the prefix."""
    with serving() as server:
        trunk = prompt(3)
        prompts = [trunk + prompt(2, first=first) for first in (20_000, 30_000)]
        server.prefill(trunk, seed=1)
        wanted = [server.prefill(tokens, seed) for seed, tokens in enumerate(prompts)]
        server.back_up()
        server.evict()
        server.wipe()
        server.rows(PAGE_TOKENS)
        for tokens, bytes_ in zip(prompts, wanted, strict=True):
            server.load(tokens)
            assert_same(server.served(tokens), bytes_)
