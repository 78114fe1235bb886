"""HiCache's sequence of calls to a storage backend, over real host pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)

from tests.pools import PAGE_TOKENS

POISON = 0xA5


def config_of(extra: dict[str, Any]) -> Any:
    """HiCache's configuration of one rank."""
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="model",
        extra_config=extra,
    )


def key_of(page: int) -> str:
    return f"{page:064x}"


class Tier:
    """One server process: HiCache's sequence of calls over its host pools."""

    def __init__(self, storage: Any, pools: dict[str, Any]) -> None:
        self.pools = pools
        self.storage = storage
        self.storage.register_mem_pool_host(pools["kv"])
        for name in ("indexer", "mamba"):
            self.storage.register_mem_host_pool_v2(pools[name], name)

    def backup(
        self,
        keys: Sequence[str],
        pages: Sequence[int],
        slot: int | None,
        *,
        before: Sequence[str] = (),
        batch: int = 128,
    ) -> bool:
        prefix = HiCacheStorageExtraInfo(prefix_keys=list(before))
        if slot is not None:
            state = transfer("mamba", keys[-1:], torch.tensor([slot]))
            self.storage.batch_set_v2([state], prefix)
        self.storage.batch_set_v2([transfer("indexer", keys, rows(pages))], prefix)
        results: list[bool] = []
        for at in range(0, len(keys), batch):
            part = list(keys[at : at + batch])
            info = HiCacheStorageExtraInfo(prefix_keys=[*before, *keys[:at]])
            indices = rows(pages[at : at + batch])
            results += self.storage.batch_set_v1(part, indices, info)
        return all(results)

    def found(self, keys: Sequence[str]) -> int:
        transfers = [
            PoolTransfer(PoolName.INDEXER),
            PoolTransfer(PoolName.MAMBA, hit_policy=PoolHitPolicy.TRAILING_PAGES),
        ]
        return int(self.storage.batch_exists_v2(list(keys), transfers).kv_hit_pages)

    def load(self, keys: Sequence[str], pages: Sequence[int], slot: int) -> bool:
        results = self.storage.batch_get_v1(list(keys), rows(pages))
        index = transfer("indexer", keys, rows(pages))
        results += self.storage.batch_get_v2([index])["indexer"]
        state = transfer("mamba", keys[-1:], torch.tensor([slot]))
        return all(results + self.storage.batch_get_v2([state])["mamba"])

    def page(self, page: int) -> dict[str, torch.Tensor]:
        return {
            name: self.pools[name].get_data_page(page * PAGE_TOKENS).clone()
            for name in ("kv", "indexer")
        }

    def state(self, slot: int) -> torch.Tensor:
        state: torch.Tensor = self.pools["mamba"].get_data_page(slot).clone()
        return state

    def fill(
        self, pages: Sequence[int], slots: Sequence[int], seed: int | None
    ) -> None:
        """Random bytes, or poison without a seed."""
        generator = torch.Generator().manual_seed(seed or 0)
        places = [("kv", page * PAGE_TOKENS) for page in pages]
        places += [("indexer", page * PAGE_TOKENS) for page in pages]
        places += [("mamba", slot) for slot in slots]
        for name, index in places:
            pool = self.pools[name]
            data = pool.get_data_page(index).view(torch.uint8)
            new = torch.randint(
                0, 256, data.shape, generator=generator, dtype=torch.uint8
            )
            if seed is None:
                new.fill_(POISON)
            pool.set_from_flat_data_page(
                index, new.view(pool.get_data_page(index).dtype)
            )


def transfer(name: str, keys: Sequence[str], indices: torch.Tensor) -> Any:
    return PoolTransfer(PoolName(name), keys=list(keys), host_indices=indices)


def rows(pages: Sequence[int]) -> torch.Tensor:
    """Token rows of host pages, as HiCache names them."""
    starts = torch.tensor(pages) * PAGE_TOKENS
    return (starts[:, None] + torch.arange(PAGE_TOKENS)).flatten()


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)), name
