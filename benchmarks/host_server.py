"""One server's prefix tree with host memory behind it: real pools, tree and HiCache.

No model runs: pages and states are random bytes, and what comes back is compared with
the pools' own memory. Used by the tests of the host tier and by its benchmark.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.host_pools import DevicePools, is_page_plane

POISON = 0xA5
PAGE_TOKENS = 64
Bytes = dict[str, list[torch.Tensor]]


@dataclass(slots=True)
class Server:
    """Its host memory holds `ratio` times the device's pages.

    Without a layout that is active, upstream's pools and copies.
    """

    pages: int = 80
    slots: int = 12
    ratio: float = 2.0
    size_gb: float = 0
    """Of host memory, in place of the ratio."""
    policy: str = "write_through"
    draft: bool = False
    device: str = "cpu"
    tree: Any = None
    """Class of the prefix tree; upstream's if left out."""
    io: tuple[str, str] = ("page_first_direct", "direct")
    """HiCache's memory layout and I/O backend, which records do not depend on."""
    pools: DevicePools = field(init=False)
    cache: Any = field(init=False)

    def open(self, pools: DevicePools) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
        from sglang.srt.runtime_context import get_memory, get_server_args

        from sglang_qsa.tiers.host.strategy import install

        install()
        self.pools = pools
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.pools.requests,
            token_to_kv_pool_allocator=self.pools.allocator,
            page_size=PAGE_TOKENS,
            enable_mamba_extra_buffer=True,
            tree_components=(ComponentType.FULL, ComponentType.MAMBA),
            mtp_draft_device_pools=self.pools.drafts,
        )
        self.cache = (self.tree or UnifiedRadixCache)(params)
        with get_memory().override(
            hicache_size=self.size_gb,
            hicache_ratio=self.ratio,
            hicache_mem_layout=self.io[0],
            hicache_io_backend=self.io[1],
            hicache_write_policy=self.policy,
        ):
            self.cache.init_hicache(get_server_args(), params)

    @property
    def controller(self) -> Any:
        return self.cache.cache_controller

    def host(self, name: str) -> Any:
        """A host pool by HiCache's name."""
        entries = self.cache.host_pool_group.entries
        return {entry.name.value: entry.host_pool for entry in entries}[name]

    # -- what requests do ----------------------------------------------------------

    def prefill(self, tokens: Sequence[int], seed: int) -> Bytes:
        """Compute the pages of `tokens`, publish them with a state at the end."""
        found = self.match(tokens)
        start = int(found.device_prefix_len)
        rows, slot = self.rows(len(tokens) - start), self.slot()
        self.fill(rows[::PAGE_TOKENS] // PAGE_TOKENS, slot, seed)
        before = self.cache.path_device_indices(found.last_device_node)
        table = torch.cat([before.to(rows.device), rows])
        wanted = self.bytes_of(table, slot)
        self.publish(tokens, table, slot, start)
        return wanted

    def publish(
        self,
        tokens: Sequence[int],
        rows: torch.Tensor,
        slot: torch.Tensor,
        start: int = 0,
    ) -> None:
        """Put a prefix with a state at its end into the tree."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        self.cache.insert(
            InsertParams(
                key=key_of(tokens), value=rows, mamba_value=slot, prev_prefix_len=start
            )
        )

    def match(self, tokens: Sequence[int], req: Any = None) -> Any:
        """With a request, a state on the device is staged for it, as for admission."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(
            MatchPrefixParams(key=key_of(tokens), req=req, cow_mamba=req is not None)
        )

    def back_up(self) -> None:
        """Submit what waits, and acknowledge what is done."""
        self.cache.flush_pending_backups()
        self.synchronize()
        self.cache.writing_check()

    def evict(self) -> None:
        """Take everything off the device."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(
            EvictParams(num_tokens=self.pages * PAGE_TOKENS, mamba_num=self.slots)
        )

    def wipe(self) -> None:
        """Poison every byte of the device's pools."""
        for layers in self.pools.records().values():
            for layer in layers:
                layer.fill_(POISON)

    def load(self, tokens: Sequence[int]) -> tuple[int, Any]:
        """Tokens that came back from host memory, and the request that asked."""
        loaded, req = self.submit_load(tokens)
        self.synchronize()
        self.cache.loading_check()
        return loaded, req

    def submit_load(self, tokens: Sequence[int]) -> tuple[int, Any]:
        loaded, req = self.queue_load(tokens)
        producer = self.cache.ready_to_load_host_cache()
        self.controller.layer_done_counter.set_consumer(producer)
        return loaded, req

    def queue_load(self, tokens: Sequence[int], req: Any = None) -> tuple[int, Any]:
        from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

        req = req or a_request()
        found = self.match(tokens, req)
        req.last_node = found.last_device_node
        req.mamba_host_hit_length = found.mamba_host_hit_length
        loaded, _ = self.cache.init_load_back(
            InitLoadBackParams(
                best_match_node=found.best_match_node,
                host_hit_length=found.host_hit_length,
                req=req,
            )
        )
        return loaded, req

    def release(self, req: Any) -> None:
        """The request ends."""
        self.pools.requests.mamba_allocator.free(req.kv.mamba_pool_idx[None])

    # -- memory ----------------------------------------------------------------------

    def rows(self, tokens: int) -> torch.Tensor:
        rows = self.pools.allocator.alloc(tokens)
        if rows is None:
            from sglang.srt.mem_cache.base_prefix_cache import EvictParams

            self.cache.evict_for_alloc(EvictParams(num_tokens=tokens))
            rows = self.pools.allocator.alloc(tokens)
        assert isinstance(rows, torch.Tensor)
        return rows.to(torch.int64)

    def slot(self) -> torch.Tensor:
        allocator = self.pools.requests.mamba_allocator
        slot = allocator.alloc(1)
        if slot is None:
            from sglang.srt.mem_cache.base_prefix_cache import EvictParams

            self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slot = allocator.alloc(1)
        assert isinstance(slot, torch.Tensor)
        return slot.to(torch.int64)

    def fill(self, pages: torch.Tensor, slot: torch.Tensor, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, layers in self.pools.records().items():
            records = pages if is_page_plane(name) else slot
            for layer in layers:
                shape = (len(records), layer.shape[1])
                data = torch.randint(
                    0, 256, shape, generator=generator, dtype=torch.uint8
                )
                layer[records] = data.to(layer.device)

    def poison(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """What another request would leave in these token slots and state slots."""
        pages = rows[::PAGE_TOKENS].long() // PAGE_TOKENS
        for name, layers in self.pools.records().items():
            for layer in layers:
                layer[pages if is_page_plane(name) else slots.long()] = POISON

    def bytes_of(self, rows: torch.Tensor, slot: torch.Tensor) -> Bytes:
        """Every plane of these token slots and of a state slot, layer by layer."""
        pages = rows[::PAGE_TOKENS].long() // PAGE_TOKENS
        return {
            name: [
                layer[pages if is_page_plane(name) else slot.long()].cpu()
                for layer in layers
            ]
            for name, layers in self.pools.records().items()
        }

    def state_of(self, req: Any) -> Bytes:
        """The planes of a request's own state slot."""
        slot = req.kv.mamba_pool_idx[None]
        return {
            name: [layer[slot.long()].cpu() for layer in layers]
            for name, layers in self.pools.records().items()
            if not is_page_plane(name)
        }

    def served(self, tokens: Sequence[int]) -> Bytes:
        """What a device hit of `tokens` would read."""
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        found = self.match(tokens)
        assert found.device_prefix_len == len(tokens)
        slot = self.cache.tree_core.get_component_device_value(
            found.best_match_node, ComponentType.MAMBA
        )
        return self.bytes_of(
            self.cache.path_device_indices(found.best_match_node), slot
        )

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def prompt(pages: int, first: int = 1000) -> list[int]:
    """Tokens of whole pages; another `first` shares none of them."""
    return list(range(first, first + pages * PAGE_TOKENS))


def key_of(tokens: Sequence[int]) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", tokens), None).page_aligned(PAGE_TOKENS)


def a_request() -> Any:
    from sglang.srt.managers.schedule_batch import ReqKvInfo

    return SimpleNamespace(
        rid="request",
        session=None,
        kv=ReqKvInfo(),
        last_node=None,
        swa_host_hit_length=0,
        mamba_host_hit_length=0,
        lock=None,
    )


def assert_same(got: Bytes, wanted: Bytes) -> None:
    assert got.keys() == wanted.keys()
    differing = [
        f"{name}, layer {layer}"
        for name in wanted
        for layer, (one, other) in enumerate(zip(got[name], wanted[name], strict=True))
        if not torch.equal(one, other)
    ]
    assert not differing
