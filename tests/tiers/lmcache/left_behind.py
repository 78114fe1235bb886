"""What the daemon keeps for its clients besides objects, by its own report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sglang_qsa.demo.daemon import LMCacheDaemon
from tests.tiers.lmcache.rank import until

_SETTLED_S = 0.1


def held_for_clients(daemon: LMCacheDaemon) -> Counter[str]:
    """Sessions, locked objects and registered servers."""
    status = daemon.status()
    locks = status["storage_manager"]["l1_manager"]["read_locked_count"]
    servers = len(status["registered_gpu_ids"])
    sessions = status["active_sessions"]
    return Counter(sessions=sessions, locked_objects=locks, servers=servers)


@contextmanager
def nothing_left_behind(daemon: LMCacheDaemon) -> Iterator[None]:
    """In the end the daemon holds no more for clients than in the beginning."""

    def settled() -> Counter[str] | None:
        """Clients do not wait until what they give back is gone."""
        first = held_for_clients(daemon)
        time.sleep(_SETTLED_S)
        return first if held_for_clients(daemon) == first else None

    before = until(settled, "a quiet daemon")
    yield
    until(lambda: held_for_clients(daemon) <= before or None, "what was left behind")
