"""HiCache's assembly for this model: record pools, their copies, their controller."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName, SidecarPoolSpec
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_bytes
from sglang.srt.mem_cache.pool_host.common import get_allocator_type
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_memory

from sglang_qsa.arena import Arena, open_arena
from sglang_qsa.budget import HostBudget, check_memory, split_budget, split_ratio
from sglang_qsa.config import load_config
from sglang_qsa.hooks import active
from sglang_qsa.layout import Record
from sglang_qsa.tiers.host.engine import Copies, RecordController, part_ends
from sglang_qsa.tiers.host.numa import near, node_of, report
from sglang_qsa.tiers.host.pools import PlanePool, RecordPool
from sglang_qsa.tiers.host.reference import ReferenceCopies
from sglang_qsa.tiers.host.strips import HostRecords, strips_of

logger = logging.getLogger(__name__)

_GB = 10**9


def install() -> None:
    """Let HiCache of this process assemble this model's pools here."""
    if not any(isinstance(s, RecordStrategy) for s in assembler._STRATEGIES):
        assembler.register_stack_strategy(RecordStrategy())


class RecordStrategy(assembler._MambaStrategy):  # type: ignore[misc]
    """For the plugin's tree cache; every other one keeps upstream's pools."""

    def matches(self, kvcache: Any, components: set[ComponentType]) -> bool:
        return (
            active.layout() is not None
            and isinstance(kvcache, QSATokenToKVPool)
            and bool(super().matches(kvcache, components))
        )

    def build(
        self,
        *,
        cache: Any,
        kvcache: Any,
        params: Any,
        server_args: Any,
        load_cache_event: Any,
        **options: Any,
    ) -> Any:
        layout = active.layout()
        assert layout is not None
        arena = open_arena(
            kv_pool=kvcache,
            req_to_token_pool=params.req_to_token_pool,
            draft_pools=params.mtp_draft_device_pools,
            layout=layout,
        )
        pages, checkpoints = _pools(arena)
        group = HostPoolGroup(_entries(cache, params, kvcache, pages, checkpoints))
        memory = get_memory()
        layers = layout.geometry.last_layer + 1
        ends = part_ends(layers)
        controller = RecordController(
            params.token_to_kv_pool_allocator,
            group,
            params.page_size,
            params.tp_cache_group,
            load_cache_event=load_cache_event,
            attn_cp_group=params.attn_cp_cache_group,
            attn_tp_group=params.attn_tp_cache_group,
            pp_group=params.pp_cache_group,
            write_policy=memory.hicache_write_policy,
            io_backend=memory.hicache_io_backend,
            transfer_layer_id_max=layers,
            host_memory_mode=memory.hicache_host_memory_mode,
            copies=_copies(arena, (pages, checkpoints), ends),
            ends=ends,
            **options,
        )
        return assembler.StackBuildResult(
            host_pool_group=group,
            cache_controller=controller,
            component_host_pools={
                ComponentType.FULL: group.get_pool(PoolName.KV),
                ComponentType.MAMBA: group.get_pool(PoolName.MAMBA),
            },
            sidecars=[SidecarPoolSpec(PoolName.INDEXER, PoolName.KV)],
            pool_declarations=kvcache.host_pool_decls(),
            register_req_to_token_counter=True,
            pools_desc="page records + checkpoint records",
        )


def host_budget(arena: Arena) -> HostBudget:
    """Records of this rank, as `--hicache-size` or `--hicache-ratio` says.

    Raises:
        ConfigError: too small for one checkpoint, or more than the machine has.
    """
    memory, tokens = get_memory(), load_config().host_tokens_per_checkpoint
    if memory.hicache_size > 0:
        size = int(memory.hicache_size * _GB)
        budget = split_budget(arena.layout, size, tokens)
    else:
        pages = int((arena.pages - 1) * memory.hicache_ratio)
        budget = split_ratio(arena.layout, pages, tokens)
    check_memory(budget, host_memory_budget_bytes())
    logger.info(
        "sglang_qsa: host memory for %d pages (%d tokens) and %d checkpoints, one for "
        "%d tokens (host_tokens_per_checkpoint; shorter prompts want less)",
        budget.pages,
        budget.pages * arena.layout.geometry.page_tokens,
        budget.checkpoints,
        tokens,
    )
    return budget


def _pools(arena: Arena) -> tuple[RecordPool, RecordPool]:
    """Pages, and checkpoints."""
    budget, layout = host_budget(arena), arena.layout
    device = next(iter(arena.planes.values())).tensors[0].device
    node = node_of(device)
    with near(node):
        pools = (
            RecordPool(
                layout.page,
                budget.pages,
                tokens=layout.geometry.page_tokens,
                device=device.type,
                device_records=arena.pages - 1,
                shown=[name for name in _names(layout.page) if not _of_index(name)],
                allocator_type=get_allocator_type(),
            ),
            RecordPool(
                layout.checkpoint,
                budget.checkpoints,
                tokens=1,
                device=device.type,
                device_records=arena.slots - 1,
                shown=_names(layout.checkpoint),
                allocator_type=get_allocator_type(),
            ),
        )
    report(node, [pool.kv_buffer for pool in pools])
    return pools


def _names(record: Record) -> list[str]:
    return [plane.name for plane in record.planes]


def _of_index(name: str) -> bool:
    """Whether HiCache expects a plane in its pool of index keys."""
    return "index" in name.split("_")


def _entries(
    cache: Any, params: Any, kvcache: Any, pages: RecordPool, checkpoints: RecordPool
) -> list[PoolEntry]:
    index = PlanePool(pages, [name for name in _names(pages.record) if _of_index(name)])
    allocator = params.req_to_token_pool.mamba_allocator
    return [
        PoolEntry(
            PoolName.KV,
            pages,
            kvcache.full_kv_pool,
            layer_mapper=int,
            is_primary_index_anchor=True,
        ),
        PoolEntry(PoolName.INDEXER, index, kvcache, layer_mapper=int),
        PoolEntry(
            PoolName.MAMBA,
            checkpoints,
            params.req_to_token_pool.mamba_pool,
            layer_mapper=int,
            host_evict_fn=lambda n: cache.evict_host(n, ComponentType.MAMBA),
            device_evict_fn=lambda n: assembler._evict_mamba_for_device_alloc(cache, n),
            device_alloc_fn=allocator.alloc,
            device_free_fn=allocator.free,
        ),
    ]


def _copies(arena: Arena, pools: Sequence[RecordPool], ends: Sequence[int]) -> Copies:
    kinds = [
        HostRecords(
            pool.record.unit,
            strips_of(arena, pool.record),
            pool.kv_buffer,
            pool.page_size,
        )
        for pool in pools
    ]
    return copies_of(kinds, ends)


def copies_of(kinds: Sequence[HostRecords], ends: Sequence[int]) -> Copies:
    """By the kernel, where there is a GPU for it."""
    if kinds[0].strips[0].rows.device.type != "cuda":
        return ReferenceCopies(kinds, ends)
    from sglang_qsa.tiers.host.kernel_copies import KernelCopies

    return KernelCopies(kinds, ends)
