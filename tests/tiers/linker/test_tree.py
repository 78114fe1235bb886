"""SGLang's real scheduling and tree with the linker: what reaches the disk."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

from sglang_qsa.admission import MIN_TOKENS
from sglang_qsa.boundary import Grid, anchor
from sglang_qsa.hooks import active
from sglang_qsa.tiers.linker.linker import RecordLinker
from sglang_qsa.tiers.linker.tree import LinkedRadixCache
from tests.pools import PAGE_TOKENS, small_layout
from tests.scheduling import Scheduling, following

pytestmark = pytest.mark.usefixtures("applied")
GRID = Grid(page_tokens=PAGE_TOKENS, kernel_tokens=PAGE_TOKENS)


class Linked(Scheduling):
    """A scheduler whose tree has the linker, on a directory."""

    def attach(self, folder: Path) -> None:
        linker = RecordLinker(
            None, self.params, extra_config={"directory": str(folder)}
        )
        self.cache.init_cache_linker(linker)

    def settle(self) -> None:
        """Wait for what was handed over, and let the tree know."""
        linker = self.cache.linker.cache_linker
        while linker.num_completed_offloads() < len(self.cache.linker.pending_offloads):
            time.sleep(0.001)
        self.cache.check_hicache_events()

    def stored_tokens(self, tokens: list[int]) -> int:
        """What a server that has nothing on its device would find for a prompt."""
        key = RadixKey(array("q", tokens[:-1]), None).page_aligned(PAGE_TOKENS)
        keys = get_storage_hash_str(key, None, page_size=PAGE_TOKENS)
        linker = self.cache.linker.cache_linker
        found = linker.lookup("a", [PoolTransfer(PoolName.KV, keys=keys)])
        return max(found, default=0) * PAGE_TOKENS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Linked]:
    active.identify(small_layout())
    server = Linked(tree=LinkedRadixCache)
    server.attach(tmp_path)
    with following(GRID):
        yield server
    active.identify(None)


def prompt(tokens: int, first: int = 5) -> list[int]:
    return [first + (31 * i) % 97 for i in range(tokens)]


def records(folder: Path) -> dict[str, int]:
    kinds = ("pages", "checkpoints", "commits")
    return {kind: len(list(folder.glob(f"*/{kind}/*"))) for kind in kinds}


NOTHING = {"pages": 0, "checkpoints": 0, "commits": 0}


def test_one_off_short_prompt_writes_nothing(server: Linked, tmp_path: Path) -> None:
    """200 tokens: stock writes 115 MB of state for them with the real shapes."""
    server.prefill(prompt(200))
    server.settle()
    assert records(tmp_path) == NOTHING
    assert server.stored_tokens(prompt(200)) == 0


def test_short_prompt_seen_again(server: Linked, tmp_path: Path) -> None:
    server.prefill(prompt(200))
    server.prefill(prompt(200))
    server.settle()
    assert records(tmp_path) == {"pages": 3, "checkpoints": 1, "commits": 1}
    server.prefill(prompt(200))
    server.settle()
    assert records(tmp_path) == {"pages": 3, "checkpoints": 1, "commits": 1}


@pytest.mark.parametrize("chunk_tokens", [256, 8192])
def test_long_prompt_and_its_boundaries(
    server: Linked, tmp_path: Path, chunk_tokens: int
) -> None:
    """All pages up to the anchor, whichever forward computed them."""
    server.chunk_tokens = chunk_tokens
    tokens = 2 * MIN_TOKENS + 76
    server.prefill(prompt(tokens))
    server.settle()
    assert records(tmp_path)["pages"] == anchor(tokens, PAGE_TOKENS) // PAGE_TOKENS
    assert records(tmp_path)["commits"] == records(tmp_path)["checkpoints"] > 0
    assert server.stored_tokens(prompt(tokens)) == anchor(tokens, PAGE_TOKENS)


def test_later_turn_brings_the_pages_before_it(server: Linked, tmp_path: Path) -> None:
    """A short first turn was not kept; the long second one stands on its pages."""
    server.prefill(prompt(200))
    server.settle()
    assert records(tmp_path) == NOTHING
    tokens = MIN_TOKENS + 200
    server.prefill(prompt(tokens))
    server.settle()
    assert records(tmp_path)["pages"] == anchor(tokens, PAGE_TOKENS) // PAGE_TOKENS
    assert server.stored_tokens(prompt(tokens)) == anchor(tokens, PAGE_TOKENS)


def test_retired_linker(server: Linked, tmp_path: Path) -> None:
    server.cache.retire_tier("the weights were updated")
    server.prefill(prompt(2 * MIN_TOKENS))
    server.settle()
    assert records(tmp_path) == NOTHING


def test_node_without_a_state_is_not_offered(server: Linked) -> None:
    """Nothing could resume there; its pages come with a node that has one."""
    server.prefill(prompt(200))
    root = server.cache.root_node_handle()
    transfer = PoolTransfer(PoolName.KV, keys=[], device_indices=torch.empty(0))
    server.cache.linker._offload_node(root, [transfer])
    assert not server.cache.linker.pending_offloads
