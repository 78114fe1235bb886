"""What the daemon keeps for its clients besides objects, by its own report."""

from __future__ import annotations

from sglang_qsa.demo.daemon import LMCacheDaemon


def held_for_clients(daemon: LMCacheDaemon) -> dict[str, int]:
    """Sessions and locked objects; empty when there are none."""
    status = daemon.status()
    locks = status["storage_manager"]["l1_manager"]["read_locked_count"]
    held = {"sessions": status["active_sessions"], "locked objects": locks}
    return {what: count for what, count in held.items() if count}


def registered_servers(daemon: LMCacheDaemon) -> int:
    return len(daemon.status()["registered_gpu_ids"])
