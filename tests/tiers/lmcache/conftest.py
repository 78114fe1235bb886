"""Real LMCache daemons, and ranks attached to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sglang_qsa.demo.daemon import LMCacheDaemon
from tests.tiers.lmcache.rank import Rank, qsa_rank


@pytest.fixture(scope="session")
def daemons(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, LMCacheDaemon]]:
    """One daemon as wanted and one that merges object groups; they start together."""
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                LMCacheDaemon(
                    tmp_path_factory.mktemp(name), separate_object_groups=separate
                )
            )
            for name, separate in (("daemon", True), ("merging-daemon", False))
        }
        for process in running.values():
            process.wait_ready()
        yield running


@pytest.fixture(scope="session")
def daemon(daemons: dict[str, LMCacheDaemon]) -> LMCacheDaemon:
    return daemons["daemon"]


@pytest.fixture
def rank(daemon: LMCacheDaemon, sglang_runtime: None) -> Iterator[Rank]:
    with qsa_rank(daemon.client_config) as running:
        yield running
