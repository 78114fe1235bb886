"""Inputs of the quantising writes, for their test and their benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

KEY_DIM: Final = 128
KV_HEADS: Final = 2
KV_DIM: Final = 256


@dataclass(frozen=True, slots=True)
class Case:
    """How many rows, and where they go."""

    name: str
    rows: int
    far: bool = False
    """The last slots lie beyond 2^31 bytes."""
    slot_dtype: torch.dtype = torch.int64
    token_gap: int = 1
    """Rows in memory per row: K and V are slices of one projection."""
    padding: bool = False
    """Every third row names slot 0 or no slot."""


CASES: Final = (
    Case("no row", 0),
    Case("one row", 1),
    Case("odd, int32 slots", 13, slot_dtype=torch.int32),
    Case("slices of a projection", 30, token_gap=3),
    Case("padding between", 33, padding=True),
    Case("beyond 2^31, int32 slots", 5, far=True, slot_dtype=torch.int32),
)


def rows(case: Case, device: torch.device, *, heads: int, dim: int) -> torch.Tensor:
    """[rows, heads, dim] bf16 over many sizes, with every special row among them."""
    generator = torch.Generator(device).manual_seed(case.rows)
    shape = (case.rows, case.token_gap, heads, dim)
    x = torch.randn(shape, generator=generator, device=device)
    sizes = torch.randint(-20, 20, shape[:3], generator=generator, device=device)
    x = (x * torch.exp2(sizes[..., None])).bfloat16()[:, 0]
    for place, special in enumerate(_special_rows(dim, device)):
        if 2 * place < case.rows:
            x[2 * place, -1] = special
    return x


def first_slot(case: Case, row_bytes: int) -> int:
    return 2**31 // row_bytes + 3 if case.far else 1


def slots(case: Case, device: torch.device, row_bytes: int) -> torch.Tensor:
    """A slot of its own for each row, in random order."""
    generator = torch.Generator(device).manual_seed(case.rows)
    order = torch.randperm(case.rows, generator=generator, device=device)
    found = (order + first_slot(case, row_bytes)).to(case.slot_dtype)
    if case.padding:
        found[0::6] = 0
        found[3::6] = -1
    return found


def _special_rows(dim: int, device: torch.device) -> list[torch.Tensor]:
    """What rounding and scales can go wrong on, [dim] bf16 each."""
    ramp = torch.arange(dim, device=device, dtype=torch.float32)
    row = torch.ones(dim, device=device)
    last = ramp == dim - 1
    return [
        each.bfloat16()
        for each in (
            torch.zeros_like(row),
            -torch.zeros_like(row),
            row * 2.0**-130,
            row * 2.0**-126 * (1 + ramp / dim),
            torch.where(last, torch.inf, row),
            torch.where(last, -torch.inf, row),
            torch.where(last, torch.nan, row),
            row * 3e38,
            torch.where(last, 6.0, ramp / 16 - 4),
            torch.where(last, 448.0, ramp / 8),
            torch.where(last, 448.0, ramp * 2.0**-10),
            torch.where(last, 6.03125, -row),
        )
    ]
