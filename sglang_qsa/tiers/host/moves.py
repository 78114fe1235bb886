"""Which records move between host and device, in one submission of HiCache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.int64]
Place = tuple[torch.Tensor, int]
"""State slots on the device of the pools, and which of them."""


@dataclass(slots=True)
class Moves:
    """Pages by their tokens, and checkpoints with their places on the device.

    A restored checkpoint goes to its node and to the request that asked for it: two
    places, and one trip over the link.
    """

    host: Numbers
    """[tokens of whole pages] indices of the host."""
    device: torch.Tensor
    """[tokens of whole pages] indices of the device, on the device of the pools."""
    checkpoints: list[tuple[int, list[Place]]]
    """Number of the host record, and one or two places."""


def moves_of(
    host: torch.Tensor,
    device: torch.Tensor,
    checkpoints: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> Moves:
    """Moves of one operation.

    Args:
        host, device: of the pages, one index for each token; `host` on the CPU.
        checkpoints: the same of states, one index for each.
    """
    moves = Moves(host.numpy(), _as_read(device), [])
    places: dict[int, list[Place]] = {}
    for records, slots in checkpoints:
        read = _as_read(slots)
        for position, record in enumerate(records.tolist()):
            places.setdefault(record, []).append((read, position))
    for record, found in places.items():
        for start in range(0, len(found), 2):
            moves.checkpoints.append((record, found[start : start + 2]))
    return moves


def _as_read(device: torch.Tensor) -> torch.Tensor:
    """The copy kernel reads int64 one after the other; so are upstream's indices."""
    if device.dtype is torch.int64 and device.is_contiguous():
        return device
    return device.to(torch.int64).contiguous()
