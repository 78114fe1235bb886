"""Bytes that a server moved, and the end of its copies, by its own counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.radix_cache.client import Server
from benchmarks.radix_cache.counters import Snapshot
from benchmarks.radix_cache.samples import EXTERNAL, HOST, STORAGE

BACKUP_QUIET_S = 1.0
"""So long without more is the end of a backup: storage counts whole operations."""

_LOAD_QUIET_S = 0.2
_LOAD_MOST_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Series:
    """Counters of one name: of all labels, or those that have `label`."""

    name: str
    label: str = ""

    def total(self, snapshot: Snapshot) -> float:
        return sum(value for key, value in snapshot.items() if self._has(key))

    def _has(self, key: str) -> bool:
        name, _, labels = key.partition(" ")
        wanted = not self.label or self.label in labels.strip("()").split(", ")
        return name == self.name and wanted


Group = Sequence[Series]

_TRANSFERRED = "sglang_qsa_transfer_bytes_total"
LOADS: Group = (
    Series("sglang:load_back_bytes_total"),
    Series(_TRANSFERRED, "load"),
)
BACKUPS: Mapping[str, Group] = {
    HOST: (Series("sglang:hicache_backup_bytes_total"),),
    STORAGE: (
        Series("sglang:backuped_tokens_total"),
        Series("sglang_qsa_store_bytes_total", "written"),
    ),
    EXTERNAL: (Series(_TRANSFERRED, "offload"),),
}
"""What grows while a prompt goes to each tier."""


async def settle(
    server: Server, tiers: Iterable[str], before: Snapshot, most_s: float
) -> float:
    """Wait until each tier got something, and nothing more for `BACKUP_QUIET_S`.

    Args:
        before: the counters before the prompt was sent.
        most_s: longest wait; the whole of it where a tier has no counter.

    Returns:
        How long it took, in seconds.
    """
    started = time.monotonic()
    groups = [BACKUPS[tier] for tier in tiers if tier in BACKUPS]
    await _grown(server, groups, before, BACKUP_QUIET_S, most_s)
    return time.monotonic() - started


async def loaded_bytes(server: Server, before: Snapshot) -> int | None:
    """What was loaded since `before`: counted a moment after the copy has ended.

    Returns:
        None where no counter grew: the server does not report it.
    """
    (found,) = await _grown(server, [LOADS], before, _LOAD_QUIET_S, _LOAD_MOST_S)
    return int(found) if found > 0 else None


async def _grown(
    server: Server,
    groups: Sequence[Group],
    before: Snapshot,
    quiet_s: float,
    most_s: float,
) -> list[float]:
    """Growth of each group, once all grew and were still for `quiet_s`."""
    started = changed = time.monotonic()
    found: list[float] = []
    while True:
        after = await server.counters()
        now = time.monotonic()
        latest = [
            sum(series.total(after) - series.total(before) for series in group)
            for group in groups
        ]
        if latest != found:
            found, changed = latest, now
        still = found and all(found) and now - changed >= quiet_s
        if still or now - started >= most_s:
            return found
        await asyncio.sleep(_POLL_S)
