"""Divide `--hicache-size` by the records it will hold.

Upstream (sglang 0.5.23) divides it as device memory is divided between the pools,
counting the scratch states of speculative decoding as if they were checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_qsa.budget import split_budget
from sglang_qsa.config import load_config
from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook

_GB = 10**9


def split(
    original: Callable[..., tuple[float, ...]], size_gb: int, pools: tuple[Any, ...]
) -> tuple[float, ...]:
    """Gigabytes for pages (K, V and index keys together) and for checkpoints."""
    layout = active.layout()
    if layout is None:
        return original(size_gb, pools)
    options = load_config()
    budget = split_budget(layout, size_gb * _GB, options.host_tokens_per_checkpoint)
    # Upstream rounds both down and adds one of each.
    half = 0.5
    return (
        (budget.pages - half) * budget.page_bytes / _GB,
        (budget.checkpoints - half) * budget.checkpoint_bytes / _GB,
    )


HOST_BUDGET = Hook(
    "host-budget",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler._split_hicache_size",
    "around",
    split,
)
