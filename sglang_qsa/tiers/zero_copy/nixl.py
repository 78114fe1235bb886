"""NIXL's file plugins as HiCache's storage, with every piece of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolTransferResult
from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl


class CheckpointNixl(HiCacheNixl):  # type: ignore[misc]
    """SGLang's NIXL backend (0.5.23): one file per piece, found when all are there.

    NIXL writes a file in place. One that was cut short is an error when it is read,
    and so a miss; bytes that changed since are not noticed.
    """

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        # To upstream this says "one file per page", which pools of whole records have.
        self.is_mla_model = _pieces(mem_pool_host) == 1

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,
    ) -> PoolTransferResult:
        """The longest boundary that has all of its files.

        Upstream takes the shortest of what each pool has, where no state need lie.
        """
        while True:
            found = super().batch_exists_v2(keys, pool_transfers, extra_info)
            pages = found.kv_hit_pages
            if pages in (0, len(keys)):
                found.restorable_prefix_pages = [pages] if pages else []
                return found
            keys = keys[:pages]

    def _get_hybrid_key_multiplier(self, pool_name: str, host_pool: Any) -> int:
        """Files of one page; upstream's guess is for states without PLE windows."""
        return _pieces(host_pool)


def _pieces(host_pool: Any) -> int:
    addresses, _ = host_pool.get_page_buffer_meta(torch.arange(host_pool.page_size))
    return len(addresses)
