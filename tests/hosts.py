"""HiCache's real host pools of the small model."""

from __future__ import annotations

from typing import Any

from tests.pools import PAGE_TOKENS, build_pools


def host_pools(size_gb: int) -> dict[str, Any]:
    """The host pools that upstream builds for the small model, by their names.

    Needs the fixture `sglang_runtime`.
    """
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.runtime_context import get_memory, get_server_args

    pools = build_pools()
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.allocator,
        page_size=PAGE_TOKENS,
        enable_mamba_extra_buffer=True,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
    )
    cache = UnifiedRadixCache(params)
    with get_memory().override(
        hicache_size=size_gb,
        hicache_mem_layout="page_first_direct",
        hicache_io_backend="direct",
    ):
        cache.init_hicache(get_server_args(), params)
    entries = cache.host_pool_group.entries
    return {entry.name.value: entry.host_pool for entry in entries}
