"""The tiers that `benchmarks.restart` measures: what to start, when all is stored."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import Progress
from sglang_qsa.demo.story import lmcache_flags, wait_until_stored
from sglang_qsa.layout import Layout
from sglang_qsa.preflight import BACKEND_NAME

_QUIET_S = 2.0
_STORE_TIMEOUT_S = 120.0
_STORE = {
    "backend_name": BACKEND_NAME,
    "module_path": "sglang_qsa.tiers.store.hicache",
    "class_name": "RecordStorage",
    "hicache_storage_pass_prefix_keys": True,
}


class Tier(Protocol):
    """Where prompts survive the restart."""

    label: str

    def flags(self) -> list[str]:
        """What a user adds to `launch_server`."""

    def mark(self) -> None:
        """Before anything is sent that `wait_until_stored` should wait for."""

    def wait_until_stored(self, progress: Progress) -> None:
        """Until something was stored since `mark`, and no more comes.

        Raises:
            TimeoutError: nothing was stored.
        """

    def facts(self, layout: Layout, tokens: int) -> dict[str, Any]:
        """What the tier tells of itself, for the result."""


class LMCacheTier:
    """An LMCache daemon beside the server."""

    label = "LMCache"

    def __init__(self, daemon: LMCacheDaemon) -> None:
        self._daemon = daemon
        self._before = 0

    def flags(self) -> list[str]:
        return lmcache_flags(self._daemon)

    def mark(self) -> None:
        self._before = self._daemon.stored_objects()

    def wait_until_stored(self, progress: Progress) -> None:
        wait_until_stored(self._daemon, self._before, progress)

    def facts(self, layout: Layout, tokens: int) -> dict[str, Any]:
        pattern = rf"Retrieved {tokens} tokens in (\S+) seconds"
        seconds = re.findall(pattern, self._daemon.log)
        return {"daemon_retrieve_s": [float(text) for text in seconds]}


class DiskTier:
    """The record store, behind HiCache or the external linker."""

    def __init__(self, directory: Path, *, linked: bool, host_gb: int) -> None:
        self.label = "disk, by the linker" if linked else "disk, through host memory"
        self._directory = directory
        self._linked = linked
        self._host_gb = host_gb
        self._before: dict[str, int] = {}

    def flags(self) -> list[str]:
        if self._linked:
            linker = {
                "linker": "RecordLinker",
                "linker_module_path": "sglang_qsa.tiers.linker.linker",
                "linker_extra_config": {"directory": str(self._directory)},
            }
            return [
                "--enable-unified-cache-external-linker",
                *("--unified-cache-external-linker-backend", "dynamic"),
                *("--unified-cache-external-linker-config", json.dumps(linker)),
            ]
        extra = _STORE | {"directory": str(self._directory)}
        return [
            *("--radix-cache-backend", BACKEND_NAME, "--enable-hierarchical-cache"),
            *("--hicache-size", str(self._host_gb), "--hicache-io-backend", "direct"),
            *("--hicache-mem-layout", "page_first_direct"),
            *("--hicache-storage-prefetch-policy", "wait_complete"),
            *("--hicache-storage-backend", "dynamic"),
            *("--hicache-storage-backend-extra-config", json.dumps(extra)),
        ]

    def mark(self) -> None:
        self._before = self._bytes()

    def wait_until_stored(self, progress: Progress) -> None:
        deadline = time.monotonic() + _STORE_TIMEOUT_S
        found, since = self._before, time.monotonic()
        while found == self._before or time.monotonic() - since < _QUIET_S:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was stored in {_STORE_TIMEOUT_S:.0f} s")
            progress("the store is written")
            time.sleep(0.1)
            latest = self._bytes()
            if latest != found:
                found, since = latest, time.monotonic()

    def facts(self, layout: Layout, tokens: int) -> dict[str, Any]:
        """Bytes on disk against those of the records that are there."""
        counts = {
            kind: len(list(self._directory.glob(f"*/{kind}/*")))
            for kind in ("pages", "checkpoints")
        }
        records = (
            counts["pages"] * layout.page_bytes
            + counts["checkpoints"] * layout.checkpoint_bytes
        )
        stored = sum(self._bytes().values())
        return counts | {
            "stored_bytes": stored,
            "record_bytes": records,
            "overhead": round(stored / records - 1, 5) if records else None,
        }

    def _bytes(self) -> dict[str, int]:
        return {
            str(file): file.stat().st_size
            for kind in ("pages", "checkpoints", "commits")
            for file in self._directory.glob(f"*/{kind}/*")
        }


@contextmanager
def open_tier(
    name: str, work: Path, *, chunk_tokens: int, gigabytes: int, progress: Progress
) -> Iterator[Tier]:
    """The tier called `name`: lmcache, disk or linker.

    Args:
        work: for logs and for the store.
        chunk_tokens: of LMCache.
        gigabytes: of memory, LMCache's or HiCache's.
    """
    if name != "lmcache":
        yield DiskTier(work / "store", linked=name == "linker", host_gb=gigabytes)
        return
    with LMCacheDaemon(work, chunk_tokens=chunk_tokens, l1_gb=gigabytes) as daemon:
        daemon.wait_ready(progress)
        yield LMCacheTier(daemon)
