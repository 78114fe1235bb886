"""Publish a state under the boundary it was taken at, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_qsa.boundary import floor, may_publish
from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook
from sglang_qsa.hooks.second import presented_state
from sglang_qsa.metrics import count

logger = logging.getLogger(__name__)


def guard(original: Callable[..., int | None], component: Any, **call: Any) -> Any:
    """Let no state pass whose depth is not the key that the tree will give it.

    Upstream (sglang 0.5.23) rounds the key down to whole pages and leaves the state.
    The slot of a refused state is freed where upstream frees one that is not needed.
    """
    second = presented_state(call["req"])
    if second is None:
        depth = original(component, **call)
    else:
        # The tree takes this slot; upstream's own stays with the request.
        call["insert_params"].mamba_value, depth = second.slot, second.depth
    rule = active.rule()
    if rule is None or not depth:
        return depth
    page_tokens = rule.grid.page_tokens
    key_len = floor(min(depth, call["token_ids_len"]), page_tokens)
    if may_publish(depth, key_len, page_tokens):
        count("sglang_qsa_checkpoints_total", result="published")
        return depth
    count("sglang_qsa_checkpoints_total", result="refused")
    logger.error(
        "sglang_qsa: a state at %d tokens was not published under a key of %d tokens "
        "(request %s); please report it",
        depth,
        key_len,
        call["req"].rid,
    )
    return 0


PUBLISH = Hook(
    "checkpoint-publish",
    "sglang.srt.mem_cache.unified_cache.components.mamba.MambaComponent"
    ".prepare_for_caching_req",
    "around",
    guard,
)
