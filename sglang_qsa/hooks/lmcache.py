"""Which upstream names are rebound while an LMCache tree cache is built.

Upstream constructs its connector and its adapter inside two constructors and
offers no factory for them. The names are rebound for the time of one call and put
back, so another cache in the process is not affected.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_qsa.errors import UpstreamMismatch, refusal
from sglang_qsa.hooks.base import Binding

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
    saved: list[tuple[Any, str, Any]] = []
    try:
        for binding, value in ((CONNECTOR, connector), (ADAPTER, adapter)):
            path, _, name = binding.target.rpartition(".")
            module = pkgutil.resolve_name(path)
            if not hasattr(module, name):
                raise UpstreamMismatch(
                    refusal(
                        found=f"no {name} in {path}",
                        wanted="the name that upstream constructs",
                        origin=f"binding {binding.id}",
                        way_out="serve with the pinned sglang and lmcache versions",
                    )
                )
            saved.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        yield
    finally:
        for module, name, original in reversed(saved):
            setattr(module, name, original)
