"""Records between the device and pinned memory: real kernels, streams and events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks.host_pools import is_page_plane
from benchmarks.host_server import Server, assert_same, prompt
from sglang_qsa.arena import open_arena
from tests.pools import PAGE_TOKENS, small_layout
from tests.tiers.host.server import assert_comes_back_elsewhere, serving

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("sglang_runtime")]

SPIN_CYCLES = 90_000_000
"""About 50 ms of an H200."""
TIMES = 100


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("pages", [1, 3, 17, 64])
def test_every_plane_comes_back_elsewhere(pages: int, policy: str, draft: bool) -> None:
    with serving(draft=draft, policy=policy, device="cuda") as server:
        assert_comes_back_elsewhere(server, pages)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(device="cuda") as server:
        yield server


def stale_backups(server: Server, times: int) -> int:
    """Pages written on the forward's stream 50 ms after their backup was submitted."""
    forward = torch.cuda.Stream()
    if server.controller.write_fence_stream is not None:
        server.controller.write_fence_stream = forward
    stale = 0
    for n in range(times):
        tokens = prompt(2, first=10_000 * (n + 1))
        rows, slot = server.rows(len(tokens)), server.slot()
        server.fill(rows[::PAGE_TOKENS] // PAGE_TOKENS, slot, seed=1)
        torch.cuda.synchronize()
        with torch.cuda.stream(forward):
            torch.cuda._sleep(SPIN_CYCLES)
            for layers in server.pools.records().values():
                for layer in layers:
                    layer.fill_(n)
        server.publish(tokens, rows, slot)
        server.back_up()
        server.evict()
        server.wipe()
        _, req = server.load(tokens)
        served = server.served(tokens)
        same = all((x == n).all() for layers in served.values() for x in layers)
        stale += not same
        server.release(req)
        server.evict()
    return stale


def test_case_18_a_page_is_written_before_it_is_backed_up(server: Server) -> None:
    server.controller.write_fence_stream = torch.cuda.Stream()
    assert stale_backups(server, TIMES) == 0


def test_case_18_without_the_fence(server: Server) -> None:
    """What the test above would say if nothing kept the order."""
    assert stale_backups(server, 3) == 3


def lost_loads(server: Server, times: int) -> int:
    """Loads into pages and slots that a forward under way still clears."""
    forward = torch.cuda.Stream()
    if server.controller.load_fence_stream is not None:
        server.controller.load_fence_stream = forward
    wanted = server.prefill(prompt(2), seed=5)
    server.back_up()
    lost = 0
    for _ in range(times):
        server.evict()
        torch.cuda.synchronize()
        with torch.cuda.stream(forward):
            torch.cuda._sleep(SPIN_CYCLES)
            server.wipe()
        _, req = server.load(prompt(2))
        served = server.served(prompt(2))
        server.release(req)
        lost += any(
            not torch.equal(one, other)
            for name in wanted
            for one, other in zip(served[name], wanted[name], strict=True)
        )
    return lost


def test_case_5_nothing_clears_after_a_load(server: Server) -> None:
    server.controller.load_fence_stream = torch.cuda.Stream()
    assert lost_loads(server, TIMES) == 0


def test_case_5_without_the_fence(server: Server) -> None:
    assert lost_loads(server, 3) == 3


def test_a_layer_s_event_comes_after_its_bytes(server: Server) -> None:
    """Each layer is read as soon as its event allows."""
    from sglang_qsa.tiers.host.strips import readers

    wanted = server.prefill(prompt(64), seed=9)
    server.back_up()
    server.evict()
    arena = open_arena(
        kv_pool=server.pools.kv,
        req_to_token_pool=server.pools.requests,
        layout=small_layout(),
    )
    for _ in range(10):
        server.wipe()
        torch.cuda.synchronize()
        _, req = server.submit_load(prompt(64))
        found = server.match(prompt(64))
        rows = server.cache.path_device_indices(found.best_match_node)
        pages, slot = rows[::PAGE_TOKENS] // PAGE_TOKENS, req.kv.mamba_pool_idx[None]
        forward, got = torch.cuda.Stream(), {}
        with torch.cuda.stream(forward):
            for layer in range(5):
                server.controller.layer_done_counter.wait_until(layer)
                for name, plane in arena.planes.items():
                    for i, reader in enumerate(readers(arena.layout, plane)):
                        if reader == layer:
                            records = pages if is_page_plane(name) else slot
                            got[name, i] = plane.record_rows()[i][records]
        torch.cuda.synchronize()
        server.cache.loading_check()
        for (name, i), rows in got.items():
            assert torch.equal(rows.cpu(), wanted[name][i])
        assert len(got) == sum(len(layers) for layers in wanted.values())
        server.release(req)
        server.evict()


def test_nothing_waits_for_the_device(server: Server) -> None:
    """Submissions return while a forward of 50 ms runs, and after it all is there."""
    forward = torch.cuda.Stream()
    server.controller.write_fence_stream = forward
    server.controller.load_fence_stream = forward
    wanted = server.prefill(prompt(2), seed=5)
    server.back_up()
    server.evict()
    torch.cuda.synchronize()

    def busy(submit: Callable[[], object]) -> bool:
        done = torch.cuda.Event()
        with torch.cuda.stream(forward):
            torch.cuda._sleep(SPIN_CYCLES)
            done.record()
        submit()
        return not done.query()

    assert busy(lambda: server.submit_load(prompt(2)))
    torch.cuda.synchronize()
    server.prefill(prompt(2, first=90_000), seed=6)
    torch.cuda.synchronize()
    assert busy(server.cache.flush_pending_backups)
    torch.cuda.synchronize()
    server.cache.loading_check()
    assert_same(server.served(prompt(2)), wanted)
