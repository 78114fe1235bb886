"""Gather compressed index keys in PyTorch.

qsa/kernel.py:284 launches a Triton kernel on every device.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _gather(
    compressed: torch.Tensor,
    token_slot_table: torch.Tensor,
    cu_blocks: torch.Tensor,
    total_blocks: int,
    max_blocks: int,
    compress_ratio: int,
) -> torch.Tensor:
    """Pack each sequence's complete keys: [total_blocks, heads, dim].

    Args:
        compressed: [slots / ratio, heads, dim].
        token_slot_table: [sequences, tokens], the token's K/V slot.
        cu_blocks: [sequences + 1], first output row of each sequence.
    """
    packed = compressed.new_empty((total_blocks, *compressed.shape[1:]))
    bounds = cu_blocks.tolist()
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        # A group of `ratio` tokens lies in one page: its first token names its key.
        tokens = slice(0, (end - start) * compress_ratio, compress_ratio)
        slots = token_slot_table[sequence, tokens].long()
        packed[start:end] = compressed[slots // compress_ratio]
    return packed


def apply(module: ModuleType) -> None:
    module.gather_qsa_compressed_keys = _gather  # type: ignore[attr-defined]
