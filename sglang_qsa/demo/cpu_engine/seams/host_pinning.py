"""Keep HiCache's host pools in pageable memory.

Host pools register their buffers with CUDA (pool_host/common.py:334) and ask torch
for pinned pages (`get_dummy_flat_data_page` in mha.py, mamba.py and
memory_pool_host.py) whenever their `pin_memory` is true, which is the default.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def _never(_pool: Any) -> bool:
    return False


def _ignore(_pool: Any, _value: bool) -> None:
    return None


def apply(module: ModuleType) -> None:
    module.HostKVCache.pin_memory = property(_never, _ignore)
