"""Rows per program of the quantisers, with the GPU they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from sglang_qsa_kernels.interpreter import INTERPRETED


@dataclass(frozen=True, slots=True)
class Tile:
    """One launch configuration."""

    rows: int
    warps: int


SAFE: Final = Tile(rows=4, warps=4)
"""For a GPU without a table."""

TUNED: Final[dict[str, Tile]] = {"NVIDIA H200": Tile(rows=2, warps=2)}


def tile_for(device: torch.device) -> Tile:
    """The measured tile of this GPU, or one that is safe on any."""
    if INTERPRETED:
        return SAFE
    return TUNED.get(torch.cuda.get_device_name(device), SAFE)
