"""What the launching process learns from a real daemon."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from sglang_qsa.config import QsaConfig
from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import HOST, free_port
from sglang_qsa.tiers.lmcache import probe
from sglang_qsa.tiers.lmcache.probe import Fact, daemon_facts

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("sglang_runtime")]


def facts(daemon: LMCacheDaemon, **options: str) -> list[Fact]:
    return list(daemon_facts(str(daemon.client_config), QsaConfig(**options)))  # type: ignore[arg-type]


def refused(found: list[Fact]) -> list[Fact]:
    return [fact for fact in found if fact[3]]


def test_good_daemon(daemon: LMCacheDaemon) -> None:
    answers, chunk = facts(daemon)
    assert answers[:2] == (f"tcp://{HOST}:{daemon.port}", "answers")
    assert chunk[1] == "64"
    assert not refused([answers, chunk])


def test_version_is_asked_where_it_is_told(daemon: LMCacheDaemon) -> None:
    *_, told = facts(daemon, lmcache_http_url=f"http://{HOST}:{daemon.http_port}/")
    assert told[1] == version("lmcache")
    assert not refused([told])


def test_wrong_address_of_the_version(daemon: LMCacheDaemon) -> None:
    *_, told = facts(daemon, lmcache_http_url=f"http://{HOST}:{free_port()}")
    assert told[1].startswith("no version")
    assert "\n" not in told[1]
    assert refused([told])


@pytest.mark.parametrize("chunk", [0, 16, 100])
def test_chunk_off_the_checkpoint_grid(
    daemon: LMCacheDaemon, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Injected: a daemon of each size would have to be started."""
    monkeypatch.setattr(probe, "_chunk_size", lambda _url, *, timeout_s: chunk)
    (fact,) = refused(facts(daemon))
    assert fact[1] == str(chunk)
    assert "--chunk-size 64" in fact[3]


def test_frozen_daemon_does_not_answer(daemon: LMCacheDaemon) -> None:
    daemon.freeze()
    try:
        options = QsaConfig(lookup_timeout_s=0.2)
        (fact,) = daemon_facts(str(daemon.client_config), options)
    finally:
        daemon.thaw()
    assert fact[1] == "no answer within 0.2 s"
    assert refused([fact])
