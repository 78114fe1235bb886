"""SGLang's Mooncake backend and ours: real host pools, a real Mooncake Store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_qsa.hooks import active
from sglang_qsa.tiers.zero_copy import register_backends
from tests.hosts import host_pools
from tests.mooncake import MooncakeMaster, MooncakeMemory, client_config
from tests.pools import small_layout
from tests.tiers.calls import POISON, Tier, assert_same, config_of, key_of

pytest.importorskip("mooncake.store", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("sglang_runtime")
KEYS = [key_of(page) for page in range(5)]
SOURCE, TARGET = [10, 11, 12, 13, 14], [44, 43, 42, 41, 40]


@pytest.fixture(scope="module")
def pools(sglang_runtime: None) -> dict[str, Any]:
    return host_pools(1)


@pytest.fixture(autouse=True)
def layout() -> Iterator[None]:
    active.identify(small_layout())
    yield
    active.identify(None)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    with MooncakeMaster(tmp_path) as master:
        master.wait_ready()
        with MooncakeMemory(tmp_path, master) as memory:
            memory.wait_ready()
            yield master


def open_tier(master: MooncakeMaster, pools: dict[str, Any]) -> Tier:
    """A server process, with what SGLang's factory builds for `mooncake`."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    register_backends()
    return Tier(
        StorageBackendFactory.create_backend(
            "mooncake", config_of(client_config(master)), pools["kv"]
        ),
        pools,
    )


def remove(tier: Tier, name: str) -> None:
    """Once nobody may be reading it any more."""
    deadline = time.monotonic() + 10
    while tier.storage.store.remove(name) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_every_plane_comes_back_elsewhere(
    master: MooncakeMaster, pools: dict[str, Any]
) -> None:
    """In another order, into poison, through a client of another life."""
    tier = open_tier(master, pools)
    tier.fill(SOURCE, [3], seed=1)
    wanted, state = [tier.page(page) for page in SOURCE], tier.state(3)
    assert tier.backup(KEYS, SOURCE, 3, batch=3)
    tier.storage.store.close()

    tier.fill([*SOURCE, *TARGET], [3, 4], seed=None)
    again = open_tier(master, pools)
    assert again.found(KEYS) == len(KEYS)
    assert again.load(KEYS, TARGET, 4)
    for page, planes in zip(TARGET, wanted, strict=True):
        assert_same(again.page(page), planes)
    assert torch.equal(again.state(4), state)
    assert (again.state(3) == POISON).all()


def test_case_2_one_object_missing(
    master: MooncakeMaster, pools: dict[str, Any]
) -> None:
    """Whichever it is, the next lower boundary that has all of its own."""
    tier = open_tier(master, pools)
    tier.fill(SOURCE, [3, 4], seed=2)
    assert tier.backup(KEYS[:2], SOURCE[:2], 3)
    assert tier.backup(KEYS[2:], SOURCE[2:], 4, before=KEYS[:2])
    names = master.object_names()
    assert len(names) == 5 * 2 + 2
    for part in ("_k", "_indexer", "_mamba"):
        (name,) = [n for n in names if KEYS[4] in n and n.endswith(part)]
        remove(tier, name)
        assert tier.found(KEYS) == 2
        assert tier.backup(KEYS[2:], SOURCE[2:], 4, before=KEYS[:2])
        assert tier.found(KEYS) == 5


def test_case_29_stock_stores_no_checkpoint(
    master: MooncakeMaster,
) -> None:
    from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store

    pools = host_pools(1, stock=True)
    stock = Tier(
        mooncake_store.MooncakeStore(config_of(client_config(master)), pools["kv"]),
        pools,
    )
    with pytest.raises(NotImplementedError, match="slot side states"):
        stock.backup(KEYS, SOURCE, 3)
    assert not master.object_names()
