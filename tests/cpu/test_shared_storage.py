"""Pools shared with the daemon in place: every alias sees what the daemon writes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FILL_MAPPED_TENSORS = """
import pickle, sys
for index, wrapper in enumerate(pickle.load(sys.stdin.buffer)):
    tensor = wrapper.to_tensor()
    assert tensor.float().sum() == 0, "what was in the pool did not arrive"
    tensor.fill_(index + 1)
"""
"""What the daemon does with the descriptions it gets, in LMCache's own code: this
process runs without the CPU engine."""


@pytest.fixture
def share() -> Any:
    from lmcache.v1.platform.devices.cpu.shm import CpuShmTensorWrapper

    return CpuShmTensorWrapper.wrap


def write_from_another_process(wrappers: list[Any]) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FILL_MAPPED_TENSORS],
        input=pickle.dumps(wrappers),
        capture_output=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr.decode()


def test_every_alias_follows(share: Any) -> None:
    """Layers of one flat buffer, handed over as views, as bytes, and off its start."""
    flat = torch.zeros(4, 6, 8, dtype=torch.bfloat16)
    layers = [flat[layer] for layer in range(4)]
    as_bytes = layers[1].view(torch.uint8)
    wrappers = [share(layers[0]), share(as_bytes), share(flat[2, 3:])]

    write_from_another_process(wrappers)

    assert (layers[0] == 1).all()
    assert (as_bytes == 2).all()
    assert (layers[2][:3] == 0).all()
    assert (layers[2][3:] == 3).all()
    assert (layers[3] == 0).all()
    assert flat.data_ptr() == layers[0].data_ptr()


def test_other_dtypes(share: Any) -> None:
    states = torch.zeros(2, 3, 5, dtype=torch.float32)
    tokens = torch.zeros(7, 2, dtype=torch.int64)
    write_from_another_process([share(states[1]), share(tokens)])
    assert (states[0] == 0).all()
    assert (states[1] == 1).all()
    assert (tokens == 2).all()


def test_one_storage_is_one_segment(share: Any) -> None:
    pool = torch.zeros(8, 8)
    first, again, other = share(pool), share(pool), share(pool[4:])
    assert first.shm_name == again.shm_name == other.shm_name
    assert Path("/dev/shm", first.shm_name.lstrip("/")).exists()


def test_writes_here_are_seen_there(share: Any) -> None:
    pool = torch.ones(16, dtype=torch.uint8)
    wrapper = share(pool)
    pool.zero_()
    write_from_another_process([wrapper])
    assert (pool == 1).all()


def test_empty_tensor(share: Any) -> None:
    assert share(torch.zeros(0, 4)).shm_name == ""
