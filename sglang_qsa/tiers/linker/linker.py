"""The linker: looks up, loads and stores records without host memory in between.

SGLang queues loads while it builds a batch, starts them together, and waits in the
forward, in the layer that first reads what a load writes. A record is verified as a
whole, so all layers of a load become ready together.

Loads and offloads have one thread each. The scheduler's thread hands over and goes on;
a load that fails is reported after the forward, and SGLang aborts its requests.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
)
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import get_device_module

from sglang_qsa.arena import open_arena
from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.hooks import active
from sglang_qsa.layout import Layout, Unit
from sglang_qsa.tiers.linker import counts
from sglang_qsa.tiers.linker.device import DeviceRecords
from sglang_qsa.tiers.linker.loads import BATCH_PAGES, Batch, Load
from sglang_qsa.tiers.linker.options import LinkerOptions
from sglang_qsa.tiers.linker.tree import Path
from sglang_qsa.tiers.store.directory import DirectoryStore
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.writer import Page, Stored

logger = logging.getLogger(__name__)


class RecordLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """`--unified-cache-external-linker-config`, of the backend `dynamic`.

    Args:
        _server_args: as SGLang passes them.
        params: `CacheInitParams` of sglang 0.5.23, with the device pools.
        components: of the tree.
        extra_config: see `LinkerOptions`.
        forward_stream: writes the device pools.
    Raises:
        ConfigError, StoreUnavailable: options or directory cannot be used.
        LayoutMismatch: the pools are not what the layout says.
    """

    def __init__(
        self,
        _server_args: Any,
        params: Any,
        *,
        components: Any = None,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        options = LinkerOptions.parse(extra_config or {})
        layout = _layout()
        arena = open_arena(
            kv_pool=params.token_to_kv_pool_allocator.get_kvcache(),
            req_to_token_pool=params.req_to_token_pool,
            layout=layout,
        )
        self._page_tokens = layout.geometry.page_tokens
        self._pages = DeviceRecords(arena, Unit.PAGE)
        self._states = DeviceRecords(arena, Unit.CHECKPOINT)
        self.pools = {PoolName.KV: self._pages, PoolName.MAMBA: self._states}
        self._store = DirectoryStore(
            options.directory,
            layout,
            tp_rank=get_parallel().tp_rank,
            budget_bytes=options.budget_bytes,
        )
        self.forward_stream = forward_stream
        self.layer_done_counter = LayerWiseLoadCounter(layout.geometry.last_layer + 1)
        # The pool of states asks for it before it hands out n-gram and conv windows;
        # SGLang registers it with the K/V pool alone.
        params.req_to_token_pool.register_layer_transfer_counter(
            self.layer_done_counter
        )
        self._device = get_device_module()
        self._streams = {
            "load": self._device.Stream(),
            "offload": self._device.Stream(),
        }
        self._loader = ThreadPoolExecutor(1, "qsa-linker-load")
        self._offloader = ThreadPoolExecutor(1, "qsa-linker-offload")
        self._queued: dict[str, Load] = {}
        self._path: Path | None = None
        self._results: SimpleQueue[bool] = SimpleQueue()
        self._retired = False
        counts.usable(True)

    # -- look up -----------------------------------------------------------------

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """The longest boundary after the pages on the device, in pages, if any."""
        (keys,) = (t.keys for t in transfers if t.name == PoolName.KV)
        if self._retired:
            counts.lookup("closed")
            return []
        pages = self._store.longest_prefix(keys)
        counts.lookup("hit" if pages else "miss")
        return [pages] if pages else []

    # -- load --------------------------------------------------------------------

    def load(self, rid: str, transfers: list[Any]) -> bool:
        by_pool = {transfer.name: transfer for transfer in transfers}
        pages, state = by_pool[PoolName.KV], by_pool[PoolName.MAMBA]
        self._queued[rid] = Load(
            Batch(Kind.PAGE, self._pages, pages.keys, self._rows(pages.device_indices)),
            Batch(Kind.CHECKPOINT, self._states, state.keys, state.device_indices),
        )
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        """Start what is queued; -1 for nothing, else what the forward waits for."""
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index: int = self.layer_done_counter.update_producer()
        # The forward before this one may still write pages that it has given back.
        events = self.record_offload_ready()
        future = self._loader.submit(self._load, events, loads)
        future.add_done_callback(lambda done: self._loaded(index, loads, done))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        landed: bool = self.layer_done_counter.finish(counter_index)
        return landed

    @counts.timed("load")
    def _load(self, events: list[Any], loads: list[Load]) -> None:
        for event in events:
            event.synchronize()
        with self._device.stream(self._streams["load"]):
            for load in loads:
                load.run(self._store)
            written = self._device.Event()
            written.record()
        written.synchronize()

    def _loaded(self, index: int, loads: list[Load], done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            logger.error("sglang_qsa: a load failed: %s", error)
            self.layer_done_counter.fail(index, error)
        else:
            for layer in range(self.layer_done_counter.num_layers):
                self.layer_done_counter.complete(index, layer)
        # Only now: a forward waits for the layers.
        counts.loads(loads, self._page_tokens, failed=error is not None)

    # -- offload -----------------------------------------------------------------

    def announce(self, path: Path) -> None:
        """The whole path of the node that is offered next."""
        self._path = path

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """Hand a checkpoint and all its pages over to be stored."""
        path, self._path = self._path, None
        if self._retired:
            counts.refused_store()
            return False
        if path is None:
            return False
        (slot,) = (t.device_indices for t in transfers if t.name == PoolName.MAMBA)
        events = self.record_offload_ready()
        future = self._offloader.submit(self._offload, events, path, slot)
        future.add_done_callback(self._offloaded)
        return True

    @counts.timed("offload")
    def _offload(self, events: list[Any], path: Path, slot: torch.Tensor) -> Stored:
        if self._store.contains(path.keys[-1]):
            return Stored.PRESENT
        for event in events:
            event.synchronize()
        payloads = {}
        missing = self._store.missing_pages(path.keys)
        with self._device.stream(self._streams["offload"]):
            rows = self._rows(path.token_slots)
            checkpoint = self._states.read(slot)[0]
            for at in range(0, len(missing), BATCH_PAGES):
                batch = missing[at : at + BATCH_PAGES]
                records = self._pages.read(
                    rows[torch.tensor(batch, device=rows.device)]
                )
                for number, record in zip(batch, records, strict=True):
                    payloads[number] = record.numpy().data
        sizes = self._states.record_bytes, self._pages.record_bytes * len(missing)
        counts.moved("offload", sum(sizes))
        pages = [Page(key, payloads.get(n)) for n, key in enumerate(path.keys)]
        return self._store.put(path.keys[-1], checkpoint.numpy().data, pages)

    def _offloaded(self, done: Future[Stored]) -> None:
        error = done.exception()
        if error is not None:
            logger.error("sglang_qsa: an offload failed: %s", error)
        stored = None if error is not None else done.result()
        counts.store(stored)
        self._results.put(stored in (Stored.WRITTEN, Stored.PRESENT))

    def num_completed_offloads(self) -> int:
        return self._results.qsize()

    def pop_completed_offload(self) -> bool:
        return self._results.get_nowait()

    # -- life --------------------------------------------------------------------

    def retire(self) -> None:
        """Neither look up nor store any more; loads that were promised come."""
        self._retired = True
        counts.usable(False)

    def reset(self) -> None:
        self._queued.clear()
        for pool in (self._loader, self._offloader):
            pool.submit(_nothing).result()
        while not self._results.empty():
            self._results.get_nowait()
        self.layer_done_counter.reset()

    def close(self) -> None:
        self.reset()
        for pool in (self._loader, self._offloader):
            pool.shutdown()
        self._store.close()

    def _rows(self, token_slots: torch.Tensor) -> torch.Tensor:
        return token_slots[:: self._page_tokens] // self._page_tokens


def _nothing() -> None:
    """What a thread does after everything before it."""


def _layout() -> Layout:
    layout = active.layout()
    if layout is None:
        raise ConfigError(
            refusal(
                found="another model, or a launch without the plugin",
                wanted="a model of this plugin",
                origin="--unified-cache-external-linker-config",
                way_out="leave the option out",
            )
        )
    return layout
