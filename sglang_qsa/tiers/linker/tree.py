"""The prefix tree of a server with the linker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    UnifiedCacheLinkerWrapper,
)

from sglang_qsa.tiers.tree import AdmittedRadixCache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Path:
    """All pages from the first token to the end of a node."""

    keys: Sequence[str]
    token_slots: torch.Tensor
    """`[pages × page tokens]` int64, where they lie on the device."""


class PathWrapper(UnifiedCacheLinkerWrapper):  # type: ignore[misc]
    """Tells the linker the whole path of a node; upstream (0.5.23) passes its end."""

    def _offload_node(self, node_id: Any, transfers: list[Any]) -> None:
        """Offer a node that ends at a checkpoint; nothing could resume on another."""
        if not any(transfer.name == PoolName.MAMBA for transfer in transfers):
            return
        tree = self.cache.tree_core
        self.cache_linker.announce(
            Path(
                [
                    *tree.get_prefix_hash_values(node_id),
                    *tree.get_hash_values(node_id),
                ],
                self.cache.path_device_indices(node_id),
            )
        )
        super()._offload_node(node_id, transfers)


class LinkedRadixCache(AdmittedRadixCache):
    """The tree with `PathWrapper` in the place of upstream's wrapper."""

    tier = "linker"

    def init_cache_linker(self, cache_linker: Any) -> None:
        self.linker = PathWrapper(self, cache_linker)

    def retire_tier(self, reason: str) -> None:
        """Neither look up nor store in the life of this server any more."""
        self.linker.cache_linker.retire()
        logger.warning("sglang_qsa: the linker is not used any more: %s", reason)
