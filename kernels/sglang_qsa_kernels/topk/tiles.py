"""Launch shapes of `topk` and the GPUs that they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Warps per program, and group maxima that one program of the first pass writes."""

    select_warps: int
    maxima_groups: int
    maxima_warps: int


_DEFAULT = Tiles(select_warps=8, maxima_groups=256, maxima_warps=4)
_MEASURED = {"NVIDIA H200": Tiles(select_warps=8, maxima_groups=128, maxima_warps=8)}


@cache
def tiles_for(device: torch.device) -> Tiles:
    """The measured shapes of this GPU, else ones that run on any."""
    if device.type != "cuda":
        return _DEFAULT
    return _MEASURED.get(torch.cuda.get_device_name(device), _DEFAULT)
