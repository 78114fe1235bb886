"""From a daemon and pools to a tier in use, or a refusal that leaves nothing behind."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import HOST, free_port
from sglang_qsa.errors import LayoutMismatch, StoreUnavailable, UpstreamMismatch
from sglang_qsa.layout import build_layout
from tests.messages import assert_refusal
from tests.pools import build_pools, small_layout
from tests.tiers.lmcache.left_behind import held_for_clients, nothing_left_behind
from tests.tiers.lmcache.metric import value
from tests.tiers.lmcache.rank import OPTIONS, qsa_rank

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("sglang_runtime")]

HASTY = dataclasses.replace(OPTIONS, register_timeout_s=0.5, retrieve_timeout_s=0.3)
SLACK_S = 4.0


@pytest.fixture(autouse=True)
def nothing_left(daemons: dict[str, LMCacheDaemon]) -> Iterator[None]:
    """Whether it starts or is refused."""
    with ExitStack() as stack:
        for daemon in daemons.values():
            stack.enter_context(nothing_left_behind(daemon))
        yield


def test_tier_is_in_use_and_the_pools_are_as_allocated(daemon: LMCacheDaemon) -> None:
    """The self-test wrote to pages and slots; no request may see that."""
    pools = build_pools()
    before = {n: [t.clone() for t in ts] for n, ts in pools.records().items()}
    with qsa_rank(daemon.client_config, pools=pools) as rank:
        assert rank.connector.usable
        assert value("sglang_qsa_tier_usable") == 1
        used = {
            name
            for name, layers in rank.image().items()
            for layer, was in zip(layers, before[name], strict=True)
            if not layer.equal(was)
        }
        # Each slot's n-gram window is set anew when a request gets the slot.
        assert used <= {"ple_ngram"}
        assert held_for_clients(daemon)["servers"] == 1


def test_pools_too_small_for_the_self_test(daemon: LMCacheDaemon) -> None:
    with pytest.raises(LayoutMismatch) as caught:
        qsa_rank(daemon.client_config, pools=build_pools(pages=3))
    assert_refusal(caught.value, origin="device pools", found="3 pages")
    assert "--max-total-tokens" in str(caught.value)


def test_no_daemon(tmp_path: Path) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text(f"mp_host: {HOST}\nmp_port: {free_port()}\n")
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        qsa_rank(config, options=HASTY)
    assert_refusal(caught.value, origin=f"tcp://{HOST}", found="no answer")
    assert time.monotonic() - started < HASTY.register_timeout_s + SLACK_S


def test_frozen_daemon(daemon: LMCacheDaemon) -> None:
    daemon.freeze()
    try:
        with pytest.raises(StoreUnavailable) as caught:
            qsa_rank(daemon.client_config, options=HASTY)
    finally:
        daemon.thaw()
    assert_refusal(caught.value, origin=f"tcp://{HOST}", found="no answer")


def test_merging_daemon(daemons: dict[str, LMCacheDaemon]) -> None:
    with pytest.raises(StoreUnavailable):
        qsa_rank(daemons["merging-daemon"].client_config)


def test_plane_that_is_not_the_pool_s_memory(
    daemon: LMCacheDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Injected: a copy is registered, so every transfer succeeds and goes nowhere."""
    from sglang_qsa.tiers.lmcache import adapter

    real: Callable[..., Any] = adapter._plane_tensors

    def copied(plane: Any) -> Any:
        tensors = real(plane)
        if plane.plane.name != "index":
            return tensors
        return [(tensor.clone(), rows) for tensor, rows in tensors]

    monkeypatch.setattr(adapter, "_plane_tensors", copied)
    with pytest.raises(LayoutMismatch) as caught:
        qsa_rank(daemon.client_config)
    assert_refusal(caught.value, found="other bytes in index after a round trip")


@pytest.mark.parametrize("name", ["connector", "adapter"])
def test_class_of_upstream_in_place_of_ours(
    daemon: LMCacheDaemon, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Injected: the names were bound and upstream constructed something else."""
    from sglang_qsa.hooks.lmcache import bound
    from sglang_qsa.tiers.lmcache import cache

    def wrongly_bound(**names: Any) -> Any:
        ours = names[name]
        other = type("Another", (ours.func,), {})
        names[name] = functools.partial(other, **ours.keywords)
        return bound(**names)

    monkeypatch.setattr(cache, "bound", wrongly_bound)
    with pytest.raises(UpstreamMismatch) as caught:
        qsa_rank(daemon.client_config)
    assert_refusal(caught.value, found="Another")


def test_plane_that_the_daemon_cannot_copy(daemon: LMCacheDaemon) -> None:
    """Three n-gram tokens are 24 bytes; on a GPU it copies 16 at a time."""
    odd = dataclasses.replace(small_layout().geometry, ngram_tokens=3)
    with pytest.raises(LayoutMismatch) as caught:
        qsa_rank(
            daemon.client_config,
            build_layout(odd),
            pools=build_pools(ngram_tokens=3),
        )
    assert_refusal(caught.value, origin="plane ple_ngram", found="24 B")
