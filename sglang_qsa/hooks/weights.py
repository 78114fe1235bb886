"""Stop using a tier when the weights of a running server change.

The layout id holds the fingerprint of the weights the server started with. What it
computes after an update belongs to other weights, and what the tier holds does too.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook

logger = logging.getLogger(__name__)


_REASON = "the weights were updated; restart the server to use the tier again"


def retire_tier(manager: Any, *args: Any, **kwargs: Any) -> None:
    """Close the tier for good; every kind of weight update passes here once."""
    cache = manager.scheduler.tree_cache
    retire = getattr(cache, "retire_tier", None)
    if retire is not None:
        retire(_REASON)
    elif active.layout() is not None and cache.enable_storage:
        _, outcome = cache.detach_storage_backend()
        logger.warning("sglang_qsa: storage is not used any more: %s", _REASON)
        logger.info("sglang_qsa: %s", outcome)


RETIRE_TIER = Hook(
    "retire-tier",
    "sglang.srt.managers.scheduler_components.weight_updater"
    ".SchedulerWeightUpdaterManager.flush_cache_after_weight_update",
    "before",
    retire_tier,
)
