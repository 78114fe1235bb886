"""HiCache's calls over real host pools become whole records, and the other way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks import active
from sglang_qsa.tiers.store.hicache import RecordStorage
from tests.hosts import host_pools
from tests.messages import assert_refusal
from tests.pools import PAGE_TOKENS, small_layout

POISON = 0xA5

pytestmark = pytest.mark.usefixtures("sglang_runtime")


def key_of(page: int) -> str:
    return f"{page:064x}"


@pytest.fixture(autouse=True)
def layout() -> Iterator[Any]:
    layout = small_layout()
    active.identify(layout)
    yield layout
    active.identify(None)


@pytest.fixture(scope="module")
def pools(sglang_runtime: None) -> dict[str, Any]:
    return host_pools(1)


class Tier:
    """One server process: HiCache's sequence of calls over its host pools."""

    def __init__(self, folder: Path, pools: dict[str, Any], **extra: Any) -> None:
        self.pools = pools
        config = SimpleNamespace(
            extra_config={"directory": str(folder), **extra}, tp_rank=0
        )
        self.storage = RecordStorage(config)
        self.storage.register_mem_pool_host(pools["kv"])
        for name in ("indexer", "mamba"):
            self.storage.register_mem_host_pool_v2(pools[name], name)

    def backup(
        self,
        keys: Sequence[str],
        pages: Sequence[int],
        slot: int | None,
        *,
        before: Sequence[str] = (),
        batch: int = 128,
    ) -> bool:
        prefix = SimpleNamespace(prefix_keys=list(before))
        if slot is not None:
            state = transfer("mamba", keys[-1:], torch.tensor([slot]))
            self.storage.batch_set_v2([state], prefix)
        self.storage.batch_set_v2([transfer("indexer", keys, rows(pages))], prefix)
        results: list[bool] = []
        for at in range(0, len(keys), batch):
            part = list(keys[at : at + batch])
            info = SimpleNamespace(prefix_keys=[*before, *keys[:at]])
            indices = rows(pages[at : at + batch])
            results += self.storage.batch_set_v1(part, indices, info)
        return all(results)

    def found(self, keys: Sequence[str]) -> int:
        transfers = [
            SimpleNamespace(name="indexer", hit_policy="all_pages"),
            SimpleNamespace(name="mamba", hit_policy="trailing_pages"),
        ]
        return int(self.storage.batch_exists_v2(list(keys), transfers).kv_hit_pages)

    def load(self, keys: Sequence[str], pages: Sequence[int], slot: int) -> bool:
        results = self.storage.batch_get_v1(list(keys), rows(pages))
        index = transfer("indexer", keys, rows(pages))
        results += self.storage.batch_get_v2([index])["indexer"]
        state = transfer("mamba", keys[-1:], torch.tensor([slot]))
        return all(results + self.storage.batch_get_v2([state])["mamba"])

    def page(self, page: int) -> dict[str, torch.Tensor]:
        return {
            name: self.pools[name].get_data_page(page * PAGE_TOKENS).clone()
            for name in ("kv", "indexer")
        }

    def state(self, slot: int) -> torch.Tensor:
        state: torch.Tensor = self.pools["mamba"].get_data_page(slot).clone()
        return state

    def fill(
        self, pages: Sequence[int], slots: Sequence[int], seed: int | None
    ) -> None:
        """Random bytes, or poison without a seed."""
        generator = torch.Generator().manual_seed(seed or 0)
        places = [("kv", page * PAGE_TOKENS) for page in pages]
        places += [("indexer", page * PAGE_TOKENS) for page in pages]
        places += [("mamba", slot) for slot in slots]
        for name, index in places:
            pool = self.pools[name]
            data = pool.get_data_page(index).view(torch.uint8)
            new = torch.randint(
                0, 256, data.shape, generator=generator, dtype=torch.uint8
            )
            if seed is None:
                new.fill_(POISON)
            pool.set_from_flat_data_page(
                index, new.view(pool.get_data_page(index).dtype)
            )


def transfer(name: str, keys: Sequence[str], indices: torch.Tensor) -> Any:
    return SimpleNamespace(name=name, keys=list(keys), host_indices=indices)


def rows(pages: Sequence[int]) -> torch.Tensor:
    """Token rows of host pages, as HiCache names them."""
    starts = torch.tensor(pages) * PAGE_TOKENS
    return (starts[:, None] + torch.arange(PAGE_TOKENS)).flatten()


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)), name


@pytest.mark.parametrize("count", [1, 5, 7])
@pytest.mark.parametrize("batch", [3, 128])
def test_every_plane_comes_back_elsewhere(
    tmp_path: Path, pools: dict[str, Any], count: int, batch: int
) -> None:
    """In another order, into poison, after a restart of the process."""
    tier = Tier(tmp_path, pools)
    keys = [key_of(page) for page in range(count)]
    source, target = list(range(10, 10 + count)), list(range(40, 40 + count))[::-1]
    tier.fill(source, [3], seed=1)
    wanted, state = [tier.page(page) for page in source], tier.state(3)
    assert tier.backup(keys, source, 3, batch=batch)
    tier.storage.close()

    tier.fill([*source, *target], [3, 4], seed=None)
    again = Tier(tmp_path, pools)
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
    tier = Tier(tmp_path, pools)
    keys = [key_of(page) for page in range(5)]
    tier.fill(range(10, 15), [3, 4], seed=2)
    assert tier.backup(keys[:3], [10, 11, 12], 3)
    assert tier.backup(keys[3:], [13, 14], 4, before=keys[:3])
    assert (tier.found(keys), tier.found(keys[:4])) == (5, 3)


def test_prefix_that_is_not_there(tmp_path: Path, pools: dict[str, Any]) -> None:
    tier = Tier(tmp_path, pools)
    keys = [key_of(page) for page in range(5)]
    assert not tier.backup(keys[3:], [13, 14], 4, before=keys[:3])
    assert tier.found(keys) == 0


def test_pages_without_a_state_are_not_kept(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    tier = Tier(tmp_path, pools)
    keys = [key_of(page) for page in range(3)]
    assert tier.backup(keys, [10, 11, 12], None)
    assert tier.found(keys) == 0
    assert not any(tmp_path.glob("*/pages/*"))


def test_backup_that_was_given_up_leaves_nothing(
    tmp_path: Path, pools: dict[str, Any]
) -> None:
    """Its index pages and its state are not those of the next one."""
    tier = Tier(tmp_path, pools)
    prefix = SimpleNamespace(prefix_keys=[])
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
    tier = Tier(tmp_path, pools)
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
        Tier(tmp_path, {**pools, "kv": other})
    assert_refusal(caught.value, origin="--hicache-mem-layout", found="page_first")


def test_without_the_plugin_s_backend(tmp_path: Path, pools: dict[str, Any]) -> None:
    active.identify(None)
    with pytest.raises(ConfigError) as caught:
        Tier(tmp_path, pools)
    assert_refusal(caught.value, found="another backend")
