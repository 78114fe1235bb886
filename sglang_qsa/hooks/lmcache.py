"""Which upstream names are rebound while an LMCache tree cache is built.

Upstream constructs its connector and its adapter inside two constructors and
offers no factory for them. The names are rebound for the time of one call and put
back, so another cache in the process is not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_qsa.hooks.base import Binding, bind

CONNECTOR = Binding(
    "bind-connector",
    "sglang.srt.mem_cache.storage.lmcache.lmcache_unified_radix_cache"
    ".UnifiedLMCacheMPConnector",
)
ADAPTER = Binding(
    "bind-adapter",
    "lmcache.integration.sglang.unified_kv_adapter.SGLangUnifiedKVAdapter",
)


@contextmanager
def bound(
    *, connector: Callable[..., Any], adapter: Callable[..., Any]
) -> Iterator[None]:
    """Let upstream construct `connector` and `adapter` while inside.

    Raises:
        UpstreamMismatch: a name is not there.
    """
    saved: list[tuple[Binding, Any]] = []
    try:
        for binding, value in ((CONNECTOR, connector), (ADAPTER, adapter)):
            saved.append((binding, bind(binding, value)))
        yield
    finally:
        for binding, original in reversed(saved):
            bind(binding, original)
