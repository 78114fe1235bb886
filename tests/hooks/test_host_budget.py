"""`--hicache-size` on real host pools: what is allocated is what the budget says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sglang_qsa.budget import split_budget
from sglang_qsa.hooks import active
from tests.pools import PAGE_TOKENS, build_pools, small_layout

SIZE_GB = 1


@pytest.fixture
def layout() -> Iterator[Any]:
    layout = small_layout()
    active.identify(layout)
    yield layout
    active.identify(None)


def host_pools() -> dict[str, Any]:
    """The host pools that upstream builds for the small model."""
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
        hicache_size=SIZE_GB,
        hicache_mem_layout="page_first_direct",
        hicache_io_backend="direct",
    ):
        cache.init_hicache(get_server_args(), params)
    entries = cache.host_pool_group.entries
    return {entry.name.value: entry.host_pool for entry in entries}


@pytest.mark.usefixtures("applied")
def test_allocated_records(layout: Any) -> None:
    budget = split_budget(layout, SIZE_GB * 10**9)
    pools = host_pools()
    assert pools["kv"].size // PAGE_TOKENS == budget.pages
    assert pools["mamba"].size == budget.checkpoints
    allocated = sum(pool.size * pool.size_per_token for pool in pools.values())
    assert allocated <= SIZE_GB * 10**9


@pytest.mark.usefixtures("applied")
def test_upstream_s_rule_without_a_layout() -> None:
    layout = small_layout()
    budget = split_budget(layout, SIZE_GB * 10**9)
    assert host_pools()["mamba"].size != budget.checkpoints
