"""Device slots that a slow daemon might still write to.

A load that was not answered in time leaves its destination in doubt. Freeing it
would let another request own pages that the daemon overwrites later, so it is held
until the operation is settled: answered, or its daemon proven dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_qsa import metrics


class RetrieveUnsettled(BaseException):
    """Leaves upstream's load path without running its clean-up.

    Not an `Exception` on purpose: upstream's handler (sglang 0.5.23,
    `LMCacheUnifiedRadixCache._start_external_load`) catches `Exception` and frees
    the destination at once. It never leaves `QsaLMCacheRadixCache`.
    """


@dataclass(frozen=True, slots=True)
class HeldLoad:
    """One unsettled load and what it may still write to."""

    operation: Any
    token_slots: torch.Tensor
    state_slot: torch.Tensor | None


class Quarantine:
    """Held loads in submission order, the same on every rank."""

    def __init__(
        self,
        *,
        free_tokens: Callable[[torch.Tensor], None],
        free_state: Callable[[torch.Tensor], None],
    ) -> None:
        self._free_tokens = free_tokens
        self._free_state = free_state
        self._held: list[HeldLoad] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def operations(self) -> list[Any]:
        return [held.operation for held in self._held]

    def hold(self, load: HeldLoad) -> None:
        self._held.append(load)
        self._export()

    def release(self, count: int) -> None:
        """Free the slots of the first `count` held loads; they are settled."""
        for held in self._held[:count]:
            self._free_tokens(held.token_slots)
            if held.state_slot is not None:
                self._free_state(held.state_slot)
        del self._held[:count]
        self._export()

    def _export(self) -> None:
        metrics.gauge("sglang_qsa_quarantined_loads", len(self._held), store="lmcache")
