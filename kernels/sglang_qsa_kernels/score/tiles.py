"""Tile sizes of the scorer, with the GPU they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import torch

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


SAFE: Final = {
    KeyFormat.BF16: Tile(64, 4, 2, 2, True),
    KeyFormat.E4M3: Tile(64, 4, 2, 2, True),
    KeyFormat.E4M3_SCALED: Tile(64, 4, 2, 2, True),
    KeyFormat.MXFP4: Tile(64, 4, 2, 2, True),
}
"""For a GPU without a table: fits 100 KiB of shared memory per multiprocessor."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Of one format on one GPU."""

    few: Tile
    """One request: a launch is mostly latency."""
    many: Tile


def _always(tile: Tile) -> Tuned:
    return Tuned(tile, tile)


# Measured with 1 to 64 requests of 8k to 256k tokens, four rows each.
TUNED: Final[dict[str, dict[KeyFormat, Tuned]]] = {
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

INTERPRETER: Final = Tile(64, 1, 1, 3, True)
"""Several programs, so that tests cross every boundary between them."""


def tile_for(key_format: KeyFormat, device: torch.device, *, requests: int) -> Tile:
    """The measured tile of this GPU, or one that is safe on any."""
    if INTERPRETED:
        return INTERPRETER
    tuned = TUNED.get(torch.cuda.get_device_name(device))
    if tuned is None:
        return SAFE[key_format]
    return tuned[key_format].few if requests == 1 else tuned[key_format].many


def multiprocessors(device: torch.device) -> int:
    if INTERPRETED:
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def is_measured(device: torch.device) -> bool:
    """Whether this GPU has a table."""
    return torch.cuda.get_device_name(device) in TUNED
