"""The linker over SGLang's real pools, called in the order in which SGLang calls it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from sglang_qsa.errors import ConfigError, LayoutMismatch
from sglang_qsa.hooks import active
from sglang_qsa.tiers.linker.linker import RecordLinker
from sglang_qsa.tiers.linker.tree import Path as TreePath
from sglang_qsa.tiers.store.system import System
from tests.messages import assert_refusal
from tests.pools import (
    GDN_LAYERS,
    PAGE_PLANES,
    PAGE_TOKENS,
    PLE_LAYERS,
    QSA_LAYERS,
    Pools,
    build_pools,
    small_layout,
)
from tests.tiers.calls import POISON, key_of
from tests.tiers.store.small import collect

pytestmark = pytest.mark.usefixtures("sglang_runtime")
KEYS = [key_of(page) for page in range(5)]
SOURCE, TARGET = [3, 4, 5, 6, 7], [12, 11, 2, 9, 8]


@pytest.fixture(autouse=True)
def layout() -> Iterator[None]:
    active.identify(small_layout())
    yield
    active.identify(None)


@dataclass(frozen=True, slots=True)
class Server:
    """The pools of one server process and its linker."""

    pools: Pools
    linker: RecordLinker

    @classmethod
    def start(cls, folder: Path) -> Server:
        """As SGLang's factories do; every byte of the pools is poison."""
        pools = build_pools()
        for rows in pools.records().values():
            for layer in rows:
                layer.fill_(POISON)
        linker = RecordLinker(
            None, _params(pools), extra_config={"directory": str(folder)}
        )
        pools.kv.register_layer_transfer_counter(linker.layer_done_counter)
        return cls(pools, linker)

    def fill(self, pages: Sequence[int], slot: int) -> dict[str, list[torch.Tensor]]:
        """Random bytes in pages and slot; what they are, by plane and layer."""
        generator = torch.Generator().manual_seed(1)
        for name, layers in self.pools.records().items():
            rows = list(pages) if name in PAGE_PLANES else [slot]
            for layer in layers:
                shape = (len(rows), layer.shape[1])
                data = torch.randint(0, 256, shape, generator=generator)
                layer[rows] = data.to(torch.uint8)
        return self.bytes(pages, slot)

    def bytes(self, pages: Sequence[int], slot: int) -> dict[str, list[torch.Tensor]]:
        return {
            name: [
                layer[list(pages) if name in PAGE_PLANES else [slot]].clone()
                for layer in layers
            ]
            for name, layers in self.pools.records().items()
        }

    def store(self, keys: Sequence[str], pages: Sequence[int], slot: int) -> bool:
        """Offload a node that begins at the first token."""
        path = TreePath(list(keys), _token_slots(pages))
        self.linker.announce(path)
        assert self.linker.offload(_transfers(keys, pages, slot))
        while not self.linker.num_completed_offloads():
            time.sleep(0.001)
        return self.linker.pop_completed_offload()

    def start_load(self, keys: Sequence[str], pages: Sequence[int], slot: int) -> int:
        assert self.linker.load("a", _transfers(keys, pages, slot))
        index = self.linker.start_layer_wise_loading()
        self.linker.layer_done_counter.set_consumer(index)
        return index

    def load(self, keys: Sequence[str], pages: Sequence[int], slot: int) -> bool:
        index = self.start_load(keys, pages, slot)
        return self.linker.finish_layer_wise_loading(index)

    def found(self, keys: Sequence[str]) -> list[int]:
        return self.linker.lookup("a", [PoolTransfer(PoolName.KV, keys=list(keys))])


def _params(pools: Pools) -> CacheInitParams:
    return CacheInitParams(
        disable=False,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.allocator,
        page_size=PAGE_TOKENS,
        enable_mamba_extra_buffer=True,
    )


def _token_slots(pages: Sequence[int]) -> torch.Tensor:
    starts = torch.tensor(pages) * PAGE_TOKENS
    return (starts[:, None] + torch.arange(PAGE_TOKENS)).flatten()


def _transfers(keys: Sequence[str], pages: Sequence[int], slot: int) -> list[Any]:
    return [
        PoolTransfer(PoolName.KV, keys=list(keys), device_indices=_token_slots(pages)),
        PoolTransfer(
            PoolName.MAMBA, keys=[keys[-1]], device_indices=torch.tensor([slot])
        ),
    ]


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, layers in a.items():
        for layer, (one, other) in enumerate(zip(layers, b[name], strict=True)):
            assert torch.equal(one, other), f"{name}, layer {layer}"


def test_every_plane_comes_back_elsewhere(tmp_path: Path) -> None:
    """In another order, into poison, after a restart; nothing else is touched."""
    server = Server.start(tmp_path)
    wanted = server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    server.linker.close()

    again = Server.start(tmp_path)
    assert again.found(KEYS) == [5]
    assert again.load(KEYS, TARGET, 6)
    assert_same(again.bytes(TARGET, 6), wanted)
    others = [page for page in range(again.pools.pages + 1) if page not in TARGET]
    for layers in again.bytes(others, 5).values():
        assert all((layer == POISON).all() for layer in layers)


def test_tail_of_a_prompt(tmp_path: Path) -> None:
    """Pages before it are on the device: neither looked up nor loaded."""
    server = Server.start(tmp_path)
    wanted = server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    assert server.found(KEYS[2:]) == [3]
    assert server.load(KEYS[2:], TARGET[2:], 6)
    loaded, tail = server.bytes(TARGET[2:], 6), dict(wanted)
    for name in PAGE_PLANES:
        tail[name] = [layer[2:] for layer in wanted[name]]
    assert_same(loaded, tail)


READERS: dict[str, Callable[[Pools], torch.Tensor]] = {
    "ple_ngram": lambda p: p.requests.get_ngram_context(torch.tensor([6])),
    "ple_conv": lambda p: p.requests.short_conv_layer_cache(PLE_LAYERS[0])[6],
    "ssm": lambda p: p.requests.mamba2_layer_cache(GDN_LAYERS[0]).temporal[6],
    "k": lambda p: p.kv.get_key_buffer(QSA_LAYERS[0])[TARGET[0] * PAGE_TOKENS],
    "index": lambda p: p.kv.get_qsa_compressed_k_buffer(QSA_LAYERS[0]),
}


@pytest.mark.parametrize("plane", READERS)
def test_no_read_races_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane: str
) -> None:
    """A forward that reads what is being loaded waits for it (CASES 3)."""
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    opened, read = threading.Event(), System.read

    def read_when_opened(system: System, *place: Any) -> int:
        opened.wait()
        return read(system, *place)

    monkeypatch.setattr(System, "read", read_when_opened)
    index = server.start_load(KEYS, TARGET, 6)
    with ThreadPoolExecutor(1) as forward:
        reading = forward.submit(lambda: READERS[plane](server.pools).clone())
        try:
            with pytest.raises(TimeoutError):
                reading.result(0.3)
        finally:
            opened.set()
        assert not (reading.result(10).view(torch.uint8) == POISON).all()
    assert server.linker.finish_layer_wise_loading(index)


@pytest.mark.parametrize("kind", ["pages", "checkpoints"])
def test_damaged_record_fails_the_load(tmp_path: Path, kind: str) -> None:
    """SGLang aborts the request; what was wrong is found by nobody again (CASES 14)."""
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    for file in tmp_path.glob(f"*/{kind}/*"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    assert server.found(KEYS) == [5]
    assert not server.load(KEYS, TARGET, 6)
    assert server.found(KEYS) == []
    assert any(tmp_path.glob("*/quarantine/*"))
    assert server.store(KEYS, SOURCE, 3)
    assert server.load(KEYS, TARGET, 6)


def test_evicted_by_another_server(tmp_path: Path) -> None:
    """After the look-up SGLang aborts the request; a resend is a miss."""
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    assert server.found(KEYS) == [5]
    collect(tmp_path, 0, layout=small_layout())
    assert not server.load(KEYS, TARGET, 6)
    assert server.found(KEYS) == []
    assert server.store(KEYS, SOURCE, 3)
    assert server.load(KEYS, TARGET, 6)


def test_scheduler_s_thread_leaves_the_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the entry and the state that a look-up found, and hands over."""
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    calls: list[str] = []
    scheduler = threading.get_ident()
    for name, call in vars(System).items():
        if name.startswith("_"):
            continue

        def noted(*place: Any, name: str = name, call: Any = call) -> Any:
            if threading.get_ident() == scheduler:
                calls.append(name)
            return call(*place)

        monkeypatch.setattr(System, name, noted)
    assert server.found(KEYS) == []
    assert server.store(KEYS, SOURCE, 3)
    assert calls == []
    assert server.found([*KEYS, key_of(99)]) == [5]
    assert calls == ["stat", "stat"]
    assert server.load(KEYS, TARGET, 6)
    assert calls == ["stat", "stat"]


def test_only_pages_that_are_missing_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    assert server.store(KEYS[:3], SOURCE[:3], 3)
    read: list[int] = []
    original = server.linker.pools[PoolName.KV].read

    def noted(rows: torch.Tensor) -> torch.Tensor:
        read.extend(rows.tolist())
        return original(rows)

    monkeypatch.setattr(server.linker.pools[PoolName.KV], "read", noted)
    assert server.store(KEYS, SOURCE, 3)
    assert read == SOURCE[3:]
    assert server.found(KEYS) == [5]


def test_nothing_is_queued_without_a_path(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    assert not server.linker.offload(_transfers(KEYS, SOURCE, 3))


def test_cancelled_load(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    assert server.linker.load("a", _transfers(KEYS, TARGET, 6))
    assert server.linker.cancel_queued_load("a")
    assert not server.linker.cancel_queued_load("a")
    assert server.linker.start_layer_wise_loading() == -1


def test_reset_drops_what_is_queued(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    server.linker.announce(TreePath(KEYS, _token_slots(SOURCE)))
    assert server.linker.offload(_transfers(KEYS, SOURCE, 3))
    assert server.linker.load("a", _transfers(KEYS, TARGET, 6))
    server.linker.reset()
    assert server.linker.num_completed_offloads() == 0
    assert server.linker.start_layer_wise_loading() == -1
    assert server.found(KEYS) == [5]  # what was handed over is written


def test_retired_linker(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    assert server.store(KEYS, SOURCE, 3)
    server.linker.retire()
    assert server.found(KEYS) == []
    server.linker.announce(TreePath(KEYS, _token_slots(SOURCE)))
    assert not server.linker.offload(_transfers(KEYS, SOURCE, 3))


def test_pools_of_another_layout(tmp_path: Path) -> None:
    active.identify(small_layout(mamba_ssm_dtype="bfloat16"))
    with pytest.raises(LayoutMismatch):
        Server.start(tmp_path)


def test_another_model(tmp_path: Path) -> None:
    active.identify(None)
    with pytest.raises(ConfigError) as caught:
        Server.start(tmp_path)
    assert_refusal(caught.value, found="another model")
