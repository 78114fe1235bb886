"""Route the tree cache of this model to `sglang_qsa.backend`.

Two seams: the backend's name is registered just before upstream looks it up, and
plain `--enable-lmcache`, which names no backend, is taken to the same place, since
upstream's own LMCache cache would drop planes of this model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_qsa.hooks.base import Hook


def register_backend(*args: Any, **kwargs: Any) -> None:
    """Put `sglang_qsa` into upstream's registry, once per process.

    Not done at plugin load: importing the registry costs seconds in every process.
    """
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )

    from sglang_qsa.backend import create_cache
    from sglang_qsa.preflight import BACKEND_NAME

    if get_radix_cache_factory(BACKEND_NAME) is None:
        register_radix_cache_backend(BACKEND_NAME, create_cache)


def route_default(original: Callable[[Any], Any], ctx: Any) -> Any:
    """Serve plain `--enable-lmcache` with this model from the plugin's backend."""
    from sglang_qsa.backend import create_cache, wants_default_route

    return create_cache(ctx) if wants_default_route(ctx) else original(ctx)


REGISTER_BACKEND = Hook(
    "register-backend",
    "sglang.srt.mem_cache.registry.create_tree_cache",
    "before",
    register_backend,
)
ROUTE_DEFAULT = Hook(
    "route-default",
    "sglang.srt.mem_cache.registry.default_radix_cache_factory",
    "around",
    route_default,
)
