"""The floor of a restore's time: one plain copy of as many pinned bytes to the GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NO_GPU = "no GPU"

PIECE_BYTES = 1 << 30
"""Beyond this a copy is several, one right after the other: a server that shares the
GPU leaves little room."""

_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What copies took on this machine."""

    device: str
    """The GPU, or why nothing was measured."""
    seconds: dict[int, float]
    """Median of a copy, by its bytes."""


def measure(sizes: Iterable[int]) -> Ceiling:
    """Time a copy of each size in bytes from pinned host memory to the first GPU."""
    wanted = sorted(set(sizes))
    if find_spec("torch") is None:
        return Ceiling(NO_GPU, {})
    import torch

    if not torch.cuda.is_available():
        return Ceiling(NO_GPU, {})
    device = torch.cuda.get_device_name()
    piece_bytes = min(max(wanted, default=1), PIECE_BYTES)
    try:
        host = torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(piece_bytes, dtype=torch.uint8, device="cuda")
    except RuntimeError:  # what torch raises where either memory is full
        return Ceiling(f"no room for a copy on {device}", {})
    return Ceiling(device, {size: _copy_s(host, there, size) for size in wanted})


def _copy_s(host: torch.Tensor, there: torch.Tensor, size: int) -> float:
    import torch

    times: list[float] = []
    for _ in range(_ROUNDS + 1):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for start in range(0, size, len(host)):
            part = min(len(host), size - start)
            there[:part].copy_(host[:part], non_blocking=True)
        ended.record()
        torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended) / 1e3)
    return statistics.median(times[1:])
