"""Launch shapes of `sparse_decode` and the GPUs that they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tokens per tile, warps and pipeline stages of a program, programs per SM."""

    block: int
    warps: int
    stages: int
    programs_per_sm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Of one format of K and V, by the number of selections for each multiprocessor."""

    few: Tiles
    """Below 1/3."""
    some: Tiles
    many: Tiles
    """From 3/2 on."""


_SAFE = Tiles(block=32, warps=4, stages=1, programs_per_sm=2)
_DEFAULT = Shapes(few=_SAFE, some=_SAFE, many=_SAFE)
_BF16 = {
    "NVIDIA H200": Shapes(
        few=Tiles(block=64, warps=4, stages=1, programs_per_sm=3),
        some=Tiles(block=32, warps=4, stages=2, programs_per_sm=3),
        many=Tiles(block=32, warps=2, stages=2, programs_per_sm=4),
    )
}
_FP8 = {
    "NVIDIA H200": Shapes(
        few=Tiles(block=64, warps=4, stages=1, programs_per_sm=4),
        some=Tiles(block=16, warps=2, stages=1, programs_per_sm=6),
        many=Tiles(block=128, warps=4, stages=1, programs_per_sm=3),
    )
}
_CPU_PROCESSORS = 4


def tiles_for(device: torch.device, *, fp8: bool, programs: int) -> Tiles:
    """The measured shapes of this GPU, else ones that run on any.

    Args:
        programs: selections to attend to, rows times KV heads.
    """
    shapes = (_FP8 if fp8 else _BF16).get(_name(device), _DEFAULT)
    processors = _processors(device)
    if 3 * programs < processors:
        return shapes.few
    return shapes.some if 2 * programs < 3 * processors else shapes.many


def splits_for(device: torch.device, tiles: Tiles, *, programs: int, width: int) -> int:
    """Parts of a selection of `width` tokens when there are `programs` selections."""
    wanted = tiles.programs_per_sm * _processors(device) // programs
    return max(1, min(wanted, -(-width // tiles.block)))


@cache
def _name(device: torch.device) -> str:
    return "" if device.type != "cuda" else torch.cuda.get_device_name(device)


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def is_measured(device: torch.device) -> bool:
    """Whether this GPU has shapes of its own."""
    return _name(device) in _BF16
