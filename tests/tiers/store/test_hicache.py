"""HiCache's calls over real host pools become whole records, and the other way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks import active
from sglang_qsa.tiers.store.hicache import RecordStorage
from tests.hosts import host_pools
from tests.messages import assert_refusal
from tests.pools import small_layout
from tests.tiers.calls import POISON, Tier, assert_same, key_of, rows, transfer

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture(autouse=True)
def layout() -> Iterator[Any]:
    layout = small_layout()
    active.identify(layout)
    yield layout
    active.identify(None)


@pytest.fixture(scope="module")
def pools(sglang_runtime: None) -> dict[str, Any]:
    return host_pools(1)


def open_tier(folder: Path, pools: dict[str, Any]) -> Tier:
    """A server process on the directory."""
    extra = {"directory": str(folder)}
    config = SimpleNamespace(extra_config=extra, tp_rank=0)
    return Tier(RecordStorage(config), pools)


@pytest.mark.parametrize("count", [1, 5, 7])
@pytest.mark.parametrize("batch", [3, 128])
def test_every_plane_comes_back_elsewhere(
    tmp_path: Path, pools: dict[str, Any], count: int, batch: int
) -> None:
    """In another order, into poison, after a restart of the process."""
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(count)]
    source, target = list(range(10, 10 + count)), list(range(40, 40 + count))[::-1]
    tier.fill(source, [3], seed=1)
    wanted, state = [tier.page(page) for page in source], tier.state(3)
    assert tier.backup(keys, source, 3, batch=batch)
    tier.storage.close()

    tier.fill([*source, *target], [3, 4], seed=None)
    again = open_tier(tmp_path, pools)
    assert again.found(keys) == count
    assert again.load(keys, target, 4)
    for page, planes in zip(target, wanted, strict=True):
        assert_same(again.page(page), planes)
    assert torch.equal(again.state(4), state)
    assert (again.state(3) == POISON).all()


def test_next_turn_stands_on_the_pages_before(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    """A backup holds new pages alone; its prefix is in the store already."""
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(5)]
    tier.fill(range(10, 15), [3, 4], seed=2)
    assert tier.backup(keys[:3], [10, 11, 12], 3)
    assert tier.backup(keys[3:], [13, 14], 4, before=keys[:3])
    assert (tier.found(keys), tier.found(keys[:4])) == (5, 3)


def test_prefix_that_is_not_there(tmp_path: Path, pools: dict[str, Any]) -> None:
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(5)]
    assert not tier.backup(keys[3:], [13, 14], 4, before=keys[:3])
    assert tier.found(keys) == 0


def test_pages_without_a_state_are_not_kept(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(3)]
    assert tier.backup(keys, [10, 11, 12], None)
    assert tier.found(keys) == 0
    assert not any(tmp_path.glob("*/pages/*"))


def test_pages_without_a_state_wait_for_the_next(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    """A fork on pages that no request has stored: two nodes, and one state."""
    tier = open_tier(tmp_path, pools)
    tier.fill(range(10, 15), [3], seed=6)
    keys = [key_of(page) for page in range(5)]
    assert tier.backup(keys[:2], [10, 11], None)
    assert tier.backup(keys[2:], [12, 13, 14], 3, before=keys[:2], batch=2)
    assert tier.found(keys) == 5
    wanted = [tier.page(page) for page in range(10, 15)]
    assert tier.load(keys, range(20, 25), 4)
    for page, planes in zip(range(20, 25), wanted, strict=True):
        assert_same(tier.page(page), planes)


def test_pages_without_a_state_do_not_wait_for_others(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(5)]
    assert tier.backup(keys[:2], [10, 11], None)
    assert tier.backup([key_of(page) for page in (30, 31)], [20, 21], None)
    assert not tier.backup(keys[2:], [12, 13, 14], 3, before=keys[:2])
    assert tier.found(keys) == 0


def test_backup_that_was_given_up_leaves_nothing(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    """Its index pages and its state are not those of the next one."""
    tier = open_tier(tmp_path, pools)
    prefix = HiCacheStorageExtraInfo(prefix_keys=[])
    lost = [key_of(page) for page in (20, 21)]
    state = transfer("mamba", lost[-1:], torch.tensor([5]))
    tier.storage.batch_set_v2([state], prefix)
    tier.storage.batch_set_v2([transfer("indexer", lost, rows([20, 21]))], prefix)
    tier.storage.batch_set_v1(lost[:1], rows([20]), prefix)

    keys = [key_of(page) for page in range(2)]
    assert tier.backup(keys, [10, 11], 3)
    assert (tier.found(keys), tier.found(lost)) == (2, 0)
    assert len(list(tmp_path.glob("*/pages/*"))) == 2


def test_damaged_page_ends_the_load(tmp_path: Path, pools: dict[str, Any]) -> None:
    tier = open_tier(tmp_path, pools)
    keys = [key_of(page) for page in range(3)]
    assert tier.backup(keys, [10, 11, 12], 3)
    for page in tmp_path.glob("*/pages/*"):
        data = bytearray(page.read_bytes())
        data[-1] ^= 1
        page.write_bytes(data)
    assert not tier.load(keys, [40, 41, 42], 4)
    assert tier.found(keys) == 0


def test_another_host_layout(tmp_path: Path, pools: dict[str, Any]) -> None:
    other = SimpleNamespace(layout="page_first")
    with pytest.raises(ConfigError) as caught:
        open_tier(tmp_path, {**pools, "kv": other})
    assert_refusal(caught.value, origin="--hicache-mem-layout", found="page_first")


def test_without_the_plugin_s_backend(tmp_path: Path, pools: dict[str, Any]) -> None:
    active.identify(None)
    with pytest.raises(ConfigError) as caught:
        open_tier(tmp_path, pools)
    assert_refusal(caught.value, found="another backend")
