"""Publish second states: before the deeper one of the same forward, as an own chunk."""

from __future__ import annotations

import logging
from typing import Any

from sglang_qsa.hooks.second import SecondState, presented, take
from sglang_qsa.metrics import count

logger = logging.getLogger(__name__)


class SecondStates:
    """Mixin before any tree cache of SGLang (0.5.23).

    What lies behind the tree then sees what it would see of a forward that ended at
    the second state: its own insert, its own offer to the tiers.
    """

    req_to_token_pool: Any
    _told = False

    def checkpoint(self, req: Any, *, up_to: int, **options: Any) -> None:
        """Publish what `req` has computed, its second state first."""
        publish = super().checkpoint  # type: ignore[misc]
        second = take(req)
        if second is not None and second.whole:
            with presented(req, second):
                publish(req, up_to=second.depth, **options)
        elif second is not None:
            self._refuse(req, second)
        publish(req, up_to=up_to, **options)

    def _refuse(self, req: Any, second: SecondState) -> None:
        self.req_to_token_pool.mamba_allocator.free(second.slot)
        count("sglang_qsa_checkpoints_total", result="refused")
        if not self._told:
            self._told = True
            logger.error(
                "sglang_qsa: a second state at %d tokens was not filled (request %s): "
                "found %s; please report it, and set second_state to off",
                second.depth,
                req.rid,
                ", ".join(sorted(part.value for part in second.filled)) or "nothing",
            )
