"""Keep HiCache's host pools in pageable memory, and most memory for them.

Host pools register their buffers with CUDA (pool_host/common.py:334) and ask torch
for pinned pages (`get_dummy_flat_data_page` in mha.py, mamba.py and
memory_pool_host.py) whenever their `pin_memory` is true, which is the default. They
leave 10 GB of a machine alone (pool_host/base.py:28), which is more than a laptop with
a server or two has left; pools are tiny here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_RESERVE_BYTES = 1 << 30


def _never(_pool: Any) -> bool:
    return False


def _ignore(_pool: Any, _value: bool) -> None:
    return None


def apply(module: ModuleType) -> None:
    module.HostKVCache.pin_memory = property(_never, _ignore)
    module.HICACHE_HOST_MEMORY_RESERVE_BYTES = _RESERVE_BYTES  # type: ignore[attr-defined]
