"""Tile sizes of the scorer, with the GPU they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

import torch
import triton

from sglang_qsa_kernels.interpreter import INTERPRETED


class KeyFormat(IntEnum):
    """How compressed keys are stored; the kernel's `FORMAT`."""

    BF16 = 0
    E4M3 = 1
    """Unscaled casts, queries too: upstream's fp8."""
    E4M3_SCALED = 2
    MXFP4 = 3


@dataclass(frozen=True, slots=True)
class Tile:
    """One launch configuration."""

    block_keys: int
    """A multiple of the largest page, 64."""
    warps: int
    stages: int
    programs_per_sm: int
    """At most what fits at once: a second wave would double the time."""
    keys_are_m: bool
    """Keys as the M operand (wgmma), or the stacked queries as M = 16 (mma)."""
    overlap: bool = False
    """Launch while the kernel before is still running, and wait for it on the device.
    From compute capability 9.0."""


@dataclass(frozen=True, slots=True)
class HopperTile:
    """One launch configuration of `score.hopper`."""

    block_keys: int
    """A multiple of 64, the keys of one wgmma."""
    stages: int
    programs_per_sm: int
    """At most 4: their registers."""
    ahead: int
    """Tiles that a program asks to be in L2 before it may read; 32 pages at most."""


SAFE: Final = {
    KeyFormat.BF16: Tile(64, 4, 2, 2, True),
    KeyFormat.E4M3: Tile(64, 4, 2, 2, True),
    KeyFormat.E4M3_SCALED: Tile(64, 4, 2, 2, True),
    KeyFormat.MXFP4: Tile(64, 4, 2, 2, True),
}
"""For a GPU without a table: fits 100 KiB of shared memory per multiprocessor."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tuned(Generic[T]):
    """Of one kernel and format on one GPU."""

    few: T
    """One request: a launch is mostly latency."""
    many: T

    def of(self, requests: int) -> T:
        return self.few if requests == 1 else self.many


def _always(tile: Tile) -> Tuned[Tile]:
    return Tuned(tile, tile)


# Measured with 1 to 64 requests of 8k to 256k tokens, four rows each.
TUNED: Final[dict[str, dict[KeyFormat, Tuned[Tile]]]] = {
    "NVIDIA H200": {
        KeyFormat.BF16: _always(Tile(64, 4, 3, 4, True, overlap=True)),
        KeyFormat.E4M3: _always(Tile(64, 4, 3, 8, True, overlap=True)),
        KeyFormat.E4M3_SCALED: Tuned(
            few=Tile(64, 4, 2, 4, True, overlap=True),
            many=Tile(32, 2, 3, 8, False, overlap=True),
        ),
        KeyFormat.MXFP4: _always(Tile(128, 4, 3, 4, True, overlap=True)),
    },
}

HOPPER: Final = {
    "NVIDIA H200": Tuned(few=HopperTile(64, 3, 2, 3), many=HopperTile(64, 3, 4, 1)),
}
"""Where `score.hopper` is sooner than `score.kernel`, for what it takes."""

INTERPRETER: Final = Tile(64, 1, 1, 3, True)
"""Several programs, so that tests cross every boundary between them."""

_LEAST_BATCH = 16
"""One compiled kernel serves all smaller batches."""


def tile_for(
    key_format: KeyFormat, device: torch.device, *, requests: int, hopper: bool
) -> Tile | HopperTile:
    """The measured tile of this GPU, or one that is safe on any.

    Args:
        hopper: `score.hopper` takes the call.
    """
    if INTERPRETED:
        return INTERPRETER
    gpu = torch.cuda.get_device_name(device)
    return tile_of(key_format, gpu, requests=requests, hopper=hopper)


def tile_of(
    key_format: KeyFormat, gpu: str, *, requests: int, hopper: bool
) -> Tile | HopperTile:
    """`tile_for` of a GPU's name."""
    if hopper and gpu in HOPPER:
        return HOPPER[gpu].of(requests)
    tuned = TUNED.get(gpu)
    return SAFE[key_format] if tuned is None else tuned[key_format].of(requests)


def programs(
    tile: Tile | HopperTile, requests: int, columns: int, device: torch.device
) -> int:
    """As many as fit at once, or as there can be tiles."""
    tiles = requests * -(-columns // tile.block_keys)
    return min(_multiprocessors(device) * tile.programs_per_sm, tiles)


def padded_batch(requests: int) -> int:
    """Requests that a program has room for."""
    return int(max(_LEAST_BATCH, triton.next_power_of_2(requests)))


def is_measured(device: torch.device) -> bool:
    """Whether this GPU has a table."""
    return torch.cuda.get_device_name(device) in TUNED


def _multiprocessors(device: torch.device) -> int:
    if INTERPRETED:
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
