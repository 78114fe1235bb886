"""HiCache's `dynamic` storage backend over the record store.

HiCache moves K and V, index keys and states in three pools and three calls; a record
holds a page or a checkpoint whole. What arrives first waits here for the rest: index
pages and the state of a backup, index pages of a load. Nothing becomes visible before
all of a checkpoint is there.

Calls come from one backup thread and one prefetch thread of HiCache, never from the
scheduler's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.hooks import active
from sglang_qsa.tiers.store.directory import DirectoryStore, Read
from sglang_qsa.tiers.store.record import Kind, Outcome
from sglang_qsa.tiers.store.writer import Page, Stored

logger = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

_LAYOUT = "page_first_direct"
"""The only layout whose pages are one plane after the other, as records are."""


class RecordStorage(HiCacheStorage):  # type: ignore[misc]
    """One rank's records in a directory.

    Args:
        config: HiCache's storage configuration. Its extra configuration names the
            `directory`, and may limit it to `budget_gb` of 10⁹ bytes.
        _options: what HiCache hands to every dynamic backend.
    Raises:
        ConfigError: the server's settings do not fit.
        StoreUnavailable: the directory cannot be used.
    """

    def __init__(self, config: Any, _options: object = None) -> None:
        layout = active.layout()
        extra = config.extra_config or {}
        if layout is None or "directory" not in extra:
            raise ConfigError(
                refusal(
                    found="another backend" if layout is None else "no directory",
                    wanted="--radix-cache-backend sglang_qsa and a directory",
                    origin="--hicache-storage-backend-extra-config",
                    way_out='name one: {"directory": "/path", ...}',
                )
            )
        # The interface with indices and prefixes; HiCache reads this after us.
        extra["interface_v1"] = 1
        budget_gb = extra.get("budget_gb")
        self._layout = layout
        self._store = DirectoryStore(
            Path(extra["directory"]),
            layout,
            tp_rank=config.tp_rank,
            budget_bytes=None if budget_gb is None else int(budget_gb * 10**9),
        )
        self._index_to_write: dict[str, Bytes] = {}
        self._state_to_write: dict[str, Bytes] = {}
        self._pages_to_write: dict[str, Bytes] = {}
        self._index_read: dict[str, Bytes] = {}

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if mem_pool_host.layout != _LAYOUT:
            raise ConfigError(
                refusal(
                    found=mem_pool_host.layout,
                    wanted=_LAYOUT,
                    origin="--hicache-mem-layout",
                    way_out=f"set it to {_LAYOUT}",
                )
            )

    def close(self) -> None:
        """Finish what was submitted."""
        self._store.close()

    # -- backup ------------------------------------------------------------------

    def batch_set_v2(
        self, transfers: Sequence[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Hold index pages and the state until the K/V pages of the same backup."""
        results = {}
        for transfer in transfers:
            pool = self.registered_pools[transfer.name]
            held = {
                key: _bytes(pool.get_data_page(index))
                for key, index in _pages(pool, transfer.keys, transfer.host_indices)
            }
            # In place of what a backup that was given up has left here.
            if transfer.name == PoolName.MAMBA:
                self._state_to_write = held
            else:
                self._index_to_write = held
                before = set(_prefix(extra_info))
                waiting = self._pages_to_write.items()
                self._pages_to_write = {k: r for k, r in waiting if k in before}
            results[transfer.name] = [True] * len(transfer.keys)
        return results

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """Complete page records; with the last of them, store the checkpoint.

        Nothing could resume on pages without a state. They wait in memory for the
        state of a backup that goes on from them, and are dropped with the next one
        that does not.
        """
        for key, index in _pages(self.mem_pool_host, keys, host_indices):
            record = np.empty(self._layout.page_bytes, np.uint8)
            keys_and_values = _bytes(self.mem_pool_host.get_data_page(index))
            record[: keys_and_values.size] = keys_and_values
            record[keys_and_values.size :] = self._index_to_write.pop(key)
            self._pages_to_write[key] = record
        state = self._state_to_write.pop(keys[-1], None)
        if state is None:
            return [True] * len(keys)
        waiting, self._pages_to_write = self._pages_to_write, {}
        pages = [
            Page(key, waiting[key].data if key in waiting else None)
            for key in (*_prefix(extra_info), *keys)
        ]
        stored = self._store.put(keys[-1], state.data, pages)
        if stored not in (Stored.WRITTEN, Stored.PRESENT):
            logger.warning("sglang_qsa: a checkpoint was not stored: %s", stored.value)
        return [stored in (Stored.WRITTEN, Stored.PRESENT)] * len(keys)

    # -- look up -----------------------------------------------------------------

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,
    ) -> PoolTransferResult:
        """The longest boundary with its state and all pages."""
        pages = self._store.longest_prefix(keys)
        if not pages:
            return PoolTransferResult.empty()
        hits = {PoolName.KV: pages}
        for transfer in pool_transfers or ():
            assert transfer.hit_policy in (
                PoolHitPolicy.ALL_PAGES,
                PoolHitPolicy.TRAILING_PAGES,
            )
            hits[transfer.name] = pages
        return PoolTransferResult(pages, hits, [pages])

    # -- prefetch ----------------------------------------------------------------

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """Read page records into the K/V pool; their index pages are asked for next."""
        self._index_read.clear()
        page_bytes = self._layout.page_bytes
        records = {key: np.empty(page_bytes, np.uint8) for key in keys}
        read = self._store.get(
            [Read(Kind.PAGE, key, records[key].data) for key in keys]
        )
        pool = self.mem_pool_host
        for (key, index), outcome in zip(
            _pages(pool, keys, host_indices), read, strict=True
        ):
            if outcome is Outcome.HIT:
                destination = pool.get_data_page(index)
                split = destination.nbytes
                part = torch.from_numpy(records[key][:split])
                pool.set_from_flat_data_page(index, part.view(destination.dtype))
                self._index_read[key] = records[key][split:]
        return [outcome is Outcome.HIT for outcome in read]

    def batch_get_v2(
        self, transfers: Sequence[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Index pages of what was just read, or the state at the end."""
        results = {}
        for transfer in transfers:
            pool = self.registered_pools[transfer.name]
            results[transfer.name] = [
                self._get_part(transfer.name, pool, key, index)
                for key, index in _pages(pool, transfer.keys, transfer.host_indices)
            ]
        return results

    def _get_part(self, name: PoolName, pool: Any, key: str, index: int) -> bool:
        data: Bytes | None
        if name == PoolName.MAMBA:
            data = np.empty(self._layout.checkpoint_bytes, np.uint8)
            (outcome,) = self._store.get([Read(Kind.CHECKPOINT, key, data.data)])
            if outcome is not Outcome.HIT:
                return False
        else:
            data = self._index_read.pop(key, None)
            if data is None:
                return False
        pool.set_from_flat_data_page(index, torch.from_numpy(data))
        return True

    # -- HiCache's older interface, which it does not use with this one -----------

    def get(self, *_args: Any, **_options: Any) -> None:
        raise NotImplementedError("records are read by batch_get_v1 and _v2")

    batch_get = set = batch_set = exists = get


def _prefix(extra_info: Any) -> Sequence[str]:
    """Keys of all pages before a backup's own."""
    return getattr(extra_info, "prefix_keys", None) or ()


def _pages(pool: Any, keys: Sequence[str], indices: Any) -> list[tuple[str, int]]:
    """Each key with the first index of its page in the pool."""
    page_size = getattr(pool, "page_size", 1) or 1
    return list(zip(keys, indices[::page_size].tolist(), strict=True))


def _bytes(page: torch.Tensor) -> Bytes:
    data: Bytes = page.contiguous().view(torch.uint8).reshape(-1).numpy()
    return data
