"""HiCache's real host pools of the small model."""

from __future__ import annotations

from typing import Any

from sglang_qsa.hooks import active
from sglang_qsa.tiers.host.strategy import install
from tests.pools import PAGE_TOKENS, build_pools, small_layout


def host_pools(size_gb: int, *, stock: bool = False) -> dict[str, Any]:
    """The host pools of the small model, by their names: the plugin's, or upstream's.

    Needs the fixture `sglang_runtime`.
    """
    install()
    before = active.layout()
    active.identify(None if stock else small_layout())
    try:
        return _host_pools(size_gb)
    finally:
        active.identify(before)


def _host_pools(size_gb: int) -> dict[str, Any]:
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
