"""Mooncake Store as HiCache's storage, one object per checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore


class CheckpointMooncake(MooncakeStore):  # type: ignore[misc]
    """SGLang's Mooncake backend (0.5.23), which has one object per tensor of a state.

    Mooncake shows an object when all of it is written, and evicts it whole: as one
    object a checkpoint is there, or it is not. So are K and V of a page.

    Args:
        config: HiCache's storage configuration.
        host_pool: of pages.
    """

    def __init__(self, config: Any, host_pool: Any) -> None:
        self._registered: set[tuple[int, int]] = set()
        super().__init__(config, host_pool)
        # To upstream this says "one object per page, of all its pieces". Rank and TP
        # size are in the tag of every key.
        self.is_mla_backend = True

    def _get_hybrid_page_component_keys(
        self, page_keys: list[str], transfer: Any
    ) -> tuple[list[str], int]:
        if transfer.name != PoolName.MAMBA:
            keys: tuple[list[str], int] = super()._get_hybrid_page_component_keys(
                page_keys, transfer
            )
            return keys
        # Upstream puts all pieces of a slot under its one key.
        return [f"{key}_{self.mla_suffix}_{transfer.name}" for key in page_keys], 1

    def _iter_host_pool_buffers(self, host_pool: Any) -> Iterator[torch.Tensor]:
        """Memory of a pool to register; once, where two pools are views of the same."""
        for buffer in super()._iter_host_pool_buffers(host_pool):
            place = buffer.data_ptr(), buffer.nbytes
            if place not in self._registered:
                self._registered.add(place)
                yield buffer
