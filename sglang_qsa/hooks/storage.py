"""Put the layout id into every key of HiCache's storage, whatever the backend.

Upstream (sglang 0.5.23) names objects by served model name and rank, on Mooncake by
rank alone: two servers whose records differ in dtype, layout or weights read each
other's bytes, with success where the sizes happen to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook

_TAG = "extra_backend_tag"
"""Part of Mooncake's keys, which have no model name."""


def identify(original: Callable[..., Any], controller: Any, *args: Any) -> Any:
    """Add the layout id to the two names that backends build their keys from.

    And the order of bytes in host memory, which whole pages are written in.
    """
    config = original(controller, *args)
    layout = active.layout()
    if layout is not None:
        records = f"{layout.layout_id}-{controller.mem_pool_host.layout}"
        config.model_name = "-".join(filter(None, (config.model_name, records)))
        extra = dict(config.extra_config or {})
        shard = f"{records}-tp{config.tp_rank}of{config.tp_size}"
        extra[_TAG] = "-".join(filter(None, (extra.get(_TAG), shard)))
        config.extra_config = extra
    return config


STORAGE_IDENTITY = Hook(
    "storage-identity",
    "sglang.srt.managers.cache_controller.HiCacheController._generate_storage_config",
    "around",
    identify,
)
