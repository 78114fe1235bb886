"""Host records before HiCache's storage backends: whole pages, views and addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.host_server import Server, assert_same, prompt
from tests.pools import PAGE_TOKENS, small_layout
from tests.tiers.host.server import serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture(params=[False, True], ids=["target", "draft"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(draft=request.param) as server:
        yield server


def host_indices(server: Server, tokens: list[int]) -> tuple[torch.Tensor, int]:
    """Of the pages and of the state that a prefix has on the host."""
    pool, states = server.host("kv"), server.host("mamba")
    used = pool.slot_used.nonzero().flatten()
    assert len(used) == len(tokens)
    return used, int(states.slot_used.nonzero())


def test_pages_go_out_and_come_in(server: Server) -> None:
    """As storage moves them: every pool's part of a page on its own."""
    tokens = prompt(3)
    wanted = server.prefill(tokens, seed=1)
    server.back_up()
    pages, state = host_indices(server, tokens)
    places = [
        (name, int(i)) for i in pages[::PAGE_TOKENS] for name in ("kv", "indexer")
    ]
    places.append(("mamba", state))
    stored = {
        (name, index): server.host(name).get_data_page(index).clone()
        for name, index in places
    }
    layout = small_layout(draft=server.draft)
    assert sum(part.nbytes for part in stored.values()) == (
        3 * layout.page_bytes + layout.checkpoint_bytes
    )
    for name in ("kv", "mamba"):
        server.host(name).kv_buffer.fill_(0xA5)
    for (name, index), data in stored.items():
        server.host(name).set_from_flat_data_page(index, data)
    server.evict()
    server.wipe()
    server.load(tokens)
    assert_same(server.served(tokens), wanted)


def test_addresses_are_those_of_the_pages(server: Server) -> None:
    """What a zero-copy backend reads there is what the others are given."""
    server.prefill(prompt(2), seed=1)
    server.back_up()
    pages, state = host_indices(server, prompt(2))
    named = [("kv", pages), ("indexer", pages), ("mamba", torch.tensor([state]))]
    if server.draft:
        with pytest.raises(NotImplementedError, match="draft rows"):
            server.host("kv").get_page_buffer_meta(pages)
        named = named[1:]
    for name, indices in named:
        pool = server.host(name)
        addresses, sizes = pool.get_page_buffer_meta(indices)
        start = pool.kv_buffer.data_ptr()
        flat = pool.kv_buffer.view(-1)
        pieces = [
            flat[address - start :][:size]
            for address, size in zip(addresses, sizes, strict=True)
        ]
        firsts = [int(i) for i in indices[:: pool.page_size]]
        whole = torch.cat([pool.get_data_page(index) for index in firsts])
        assert torch.equal(torch.cat(pieces), whole)


def test_a_page_of_another_layout_is_refused(server: Server) -> None:
    pool = server.host("kv")
    data = pool.get_dummy_flat_data_page()
    with pytest.raises(ValueError, match="this server's has"):
        pool.set_from_flat_data_page(0, data[:-1])
    with pytest.raises(ValueError, match="this server's has"):
        pool.set_from_flat_data_page(0, torch.cat([data, data]))


def test_records_are_aligned(server: Server) -> None:
    for name in ("kv", "mamba"):
        stride = server.host(name).kv_buffer.stride(0)
        assert stride % 4096 == 0
        assert 0 <= stride - server.host(name).record.record_bytes < 4096
