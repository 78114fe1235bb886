"""Host memory on the GPU's node: a made-up sysfs, and this machine's own memory."""

from __future__ import annotations

import ctypes
import logging
import os
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.environ import envs

from sglang_qsa.tiers.host import numa, strategy
from tests.tiers.host.server import serving

GPU = "0000:c1:00.0"
CPUS = sorted(os.sched_getaffinity(0))
HERE = numa.Node(0, frozenset(CPUS[:1]), GPU)
"""A part of the CPUs that this process has, all of them on one node or not."""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes, the GPU at the second."""
    nodes = tmp_path / "devices/system/node"
    for number, cpus in enumerate(["0-1,4", "2-3,5"]):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(f"{cpus}\n")
    (nodes / "has_memory").write_text("0-1\n")
    gpu = tmp_path / "bus/pci/devices" / GPU
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text("1\n")
    monkeypatch.setattr(numa, "SYSTEM", tmp_path)
    return tmp_path


def test_the_node_of_a_gpu(system: Path) -> None:
    assert numa.node_at(GPU) == numa.Node(1, frozenset({2, 3, 5}), GPU)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("devices/system/node/has_memory", "0\n"),
        (f"bus/pci/devices/{GPU}/numa_node", "-1\n"),
    ],
    ids=["one node", "unknown"],
)
def test_no_choice(system: Path, path: str, text: str) -> None:
    (system / path).write_text(text)
    assert numa.node_at(GPU) is None


def test_a_container_without_sysfs(system: Path) -> None:
    (system / f"bus/pci/devices/{GPU}/numa_node").unlink()
    assert numa.node_at(GPU) is None


def test_the_address_is_that_of_sysfs(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    gpu = torch.device("cuda", 3)
    assert numa.node_of(gpu) == numa.node_at(GPU) is not None
    assert numa.node_of(torch.device("cpu")) is None
    with envs.SGLANG_AUTO_NUMA_BIND.override(False):
        assert numa.node_of(gpu) is None


def test_the_thread_comes_back() -> None:
    with suppress(MemoryError), numa.near(HERE):
        assert os.sched_getaffinity(0) == HERE.cpus
        raise MemoryError
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_bound_to_a_part_of_the_node() -> None:
    """By the operator; the thread goes nowhere else."""
    os.sched_setaffinity(0, CPUS[:1])
    try:
        with numa.near(numa.Node(0, frozenset(CPUS), GPU)):
            assert sorted(os.sched_getaffinity(0)) == CPUS[:1]
        assert sorted(os.sched_getaffinity(0)) == CPUS[:1]
    finally:
        os.sched_setaffinity(0, CPUS)


def test_bound_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """By the operator, or where a sandbox forbids it: a warning, and no more."""
    far = numa.Node(1, frozenset({max(CPUS) + 1}), GPU)
    with caplog.at_level(logging.WARNING), numa.near(far):
        assert sorted(os.sched_getaffinity(0)) == CPUS
    (record,) = caplog.records
    for part in (str(CPUS[0]), "node 1", GPU, "--numa-node", "SGLANG_AUTO_NUMA_BIND=0"):
        assert part in record.getMessage()


@pytest.mark.usefixtures("sglang_runtime")
@pytest.mark.parametrize("threads", [0, 2])
def test_records_are_touched_there(
    threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By HiCache's own allocation, in this thread or in threads of its own."""
    from sglang.srt.mem_cache.storage.mmap import mmap_allocator

    touched_by: list[set[int]] = []

    def noted(original: Any, *arguments: Any) -> Any:
        touched_by.append(os.sched_getaffinity(0))
        return original(*arguments)

    for where, name in (
        (mmap_allocator, "_mmap_prefaulted"),
        (mmap_allocator._libc, "memset"),
    ):
        monkeypatch.setattr(where, name, partial(noted, getattr(where, name)))
    monkeypatch.setattr(strategy, "node_of", lambda _: HERE)
    with (
        envs.SGLANG_HICACHE_HOST_PARALLEL_ALLOC_THREADS.override(threads),
        caplog.at_level(logging.INFO, logger=numa.__name__),
        serving() as server,
    ):
        held = [server.host("kv").kv_buffer, server.host("mamba").kv_buffer]
        nodes = numa.bytes_by_node(held)
    assert touched_by
    assert all(cpus == HERE.cpus for cpus in touched_by)
    assert sorted(os.sched_getaffinity(0)) == CPUS
    size = sum(buffer.nbytes for buffer in held)
    assert set(nodes) == {0}
    assert nodes[0] >= size
    assert f"{size} B of host memory, 100.0 % of it on memory node 0" in caplog.text
    assert GPU in caplog.text


def test_memory_that_went_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numa, "bytes_by_node", lambda _: Counter({0: 300, 1: 100}))
    numa.report(numa.Node(1, frozenset({2}), GPU), [torch.zeros(7, dtype=torch.uint8)])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "7 B of host memory, 25.0 % of it on memory node 1" in record.getMessage()


def test_a_kernel_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numa, "MAPS", tmp_path / "numa_maps")
    numa.report(numa.Node(1, frozenset({2}), GPU), [torch.zeros(7, dtype=torch.uint8)])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "numa_maps: No such file or directory" in record.getMessage()


def test_mappings_are_found_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of neighbours that begin before or end after a buffer, those that hold it."""
    buffer = torch.zeros(3 * 4096, dtype=torch.uint8)
    start = buffer.data_ptr()
    maps = tmp_path / "numa_maps"
    maps.write_text(
        f"{start - 8192:x} default anon=1 N0=64 kernelpagesize_kB=4\n"
        f"{start - 4096:x} bind:1 file=/N7=9 anon=2 N0=1 N1=2 kernelpagesize_kB=4\n"
        f"{start + 8192:x} default\n"
        f"{start + 10000:x} default huge N1=1 kernelpagesize_kB=2048\n"
        f"{start + buffer.nbytes:x} default anon=1 N0=64 kernelpagesize_kB=4\n"
    )
    monkeypatch.setattr(numa, "MAPS", maps)
    assert numa.bytes_by_node([buffer]) == {0: 4096, 1: 2 * 4096 + 2**21}


@pytest.mark.usefixtures("sglang_runtime")
def test_what_is_logged_is_what_the_kernel_says() -> None:
    """get_mempolicy with MPOL_F_NODE | MPOL_F_ADDR, for the first page of each pool."""
    try:
        libnuma = ctypes.CDLL("libnuma.so.1", use_errno=True)
    except OSError:
        pytest.skip("no libnuma.so.1")
    with serving() as server:
        for name in ("kv", "mamba"):
            buffer, node = server.host(name).kv_buffer, ctypes.c_int(-1)
            address = ctypes.c_void_p(buffer.data_ptr())
            failed = libnuma.get_mempolicy(
                ctypes.byref(node), None, ctypes.c_ulong(0), address, 3
            )
            assert not failed, os.strerror(ctypes.get_errno())
            assert numa.bytes_by_node([buffer])[node.value] >= 4096
