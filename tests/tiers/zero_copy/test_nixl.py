"""SGLang's NIXL backend and ours: real host pools, NIXL's POSIX plugin, real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_qsa.hooks import active
from sglang_qsa.tiers.zero_copy import register_backends
from tests.hosts import host_pools
from tests.pools import small_layout
from tests.tiers.calls import POISON, Tier, assert_same, config_of, key_of

pytest.importorskip("nixl._api", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("sglang_runtime")
KEYS = [key_of(page) for page in range(5)]
SOURCE, TARGET = [10, 11, 12, 13, 14], [44, 43, 42, 41, 40]
EXTRA = {
    "plugin": {"posix": {"active": True}},
    "use_direct_io": False,
    "l3_cleaner_enabled": False,
}


@pytest.fixture(scope="module")
def pools(sglang_runtime: None) -> dict[str, Any]:
    return host_pools(1)


@pytest.fixture(autouse=True)
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", str(tmp_path))
    active.identify(small_layout())
    yield
    active.identify(None)


def open_tier(pools: dict[str, Any], *, ours: bool = True) -> Tier:
    """A server process, with what SGLang's factory builds for `nixl`."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory
    from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl

    register_backends()
    config = config_of(EXTRA)
    if not ours:
        return Tier(HiCacheNixl(config), pools)
    backend = StorageBackendFactory.create_backend("nixl", config, pools["kv"])
    return Tier(backend, pools)


def files(folder: Path, key: str = "") -> list[Path]:
    return [file for file in folder.rglob(f"*{key}*") if file.is_file()]


def test_every_plane_comes_back_elsewhere(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    """In another order, into poison, through an agent of another life."""
    tier = open_tier(pools)
    tier.fill(SOURCE, [3], seed=1)
    wanted, state = [tier.page(page) for page in SOURCE], tier.state(3)
    assert tier.backup(KEYS, SOURCE, 3, batch=3)
    tier.storage.close()

    tier.fill([*SOURCE, *TARGET], [3, 4], seed=None)
    again = open_tier(pools)
    assert again.found(KEYS) == len(KEYS)
    assert again.load(KEYS, TARGET, 4)
    for page, planes in zip(TARGET, wanted, strict=True):
        assert_same(again.page(page), planes)
    assert torch.equal(again.state(4), state)
    assert (again.state(3) == POISON).all()


def test_case_2_any_file_missing(tmp_path: Path, pools: dict[str, Any]) -> None:
    """Whichever it is, the next lower boundary that has all of its own."""
    tier = open_tier(pools)
    tier.fill(SOURCE, [3, 4], seed=2)
    assert tier.backup(KEYS[:2], SOURCE[:2], 3)
    assert tier.backup(KEYS[2:], SOURCE[2:], 4, before=KEYS[:2])
    for file in files(tmp_path, KEYS[4]):
        file.rename(tmp_path / "aside")
        assert tier.found(KEYS) == 2
        (tmp_path / "aside").rename(file)
    assert tier.found(KEYS) == 5


def test_case_14_file_cut_short(tmp_path: Path, pools: dict[str, Any]) -> None:
    tier = open_tier(pools)
    tier.fill(SOURCE, [3], seed=3)
    assert tier.backup(KEYS, SOURCE, 3)
    for file in files(tmp_path, KEYS[4]):
        whole = file.read_bytes()
        file.write_bytes(whole[:10])
        assert not tier.load(KEYS, TARGET, 4)
        file.write_bytes(whole)
    assert tier.load(KEYS, TARGET, 4)


def test_stock_stores_no_checkpoint(tmp_path: Path) -> None:
    pools = host_pools(1, stock=True)
    with pytest.raises(NotImplementedError, match="slot side states"):
        open_tier(pools, ours=False).backup(KEYS, SOURCE, 3)
    assert not files(tmp_path)
