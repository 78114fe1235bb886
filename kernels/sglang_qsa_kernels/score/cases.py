"""Inputs of the scorer, for its test and its benchmark."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from sglang_qsa_kernels.codec.reference import quantise_e4m3, quantise_mxfp4
from sglang_qsa_kernels.score import HEAD_DIM, HEADS
from sglang_qsa_kernels.score.tiles import KeyFormat

PAGE_SIZE: Final = 16
"""Compressed keys of a page of 64 tokens."""
RATIO: Final = 4
"""Tokens per compressed key."""
SCALE: Final = 1 / math.sqrt(HEAD_DIM)
NO_PAGE: Final = 2**30
"""Fills page tables past a request's pages: reading a key there is a fault."""
TOLERANCE: Final = {
    KeyFormat.BF16: 1e-6,
    KeyFormat.E4M3: 1e-3,
    KeyFormat.E4M3_SCALED: 1e-6,
    KeyFormat.MXFP4: 1e-6,
}
"""Error of a row against fp64, both as 2-norms over its visible blocks. Hopper adds
products of e4m3 operands with about 14 bits."""


@dataclass(frozen=True, slots=True)
class Case:
    """Visible blocks of every row of every request, and how the pool is laid out."""

    name: str
    visible: tuple[tuple[int, ...], ...]
    key_format: KeyFormat = KeyFormat.BF16
    page_size: int = PAGE_SIZE
    padded_heads: int = HEADS
    """Heads in memory; upstream pads queries to 8."""
    page_gap: int = 1
    """Pages between neighbours of the pool: keys of several layers may share it."""
    first_page: int = 1
    spare_pages: int = 0
    """Entries of the page table past the longest request."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of `score`, in its order."""

    q: torch.Tensor
    keys: torch.Tensor
    page_table: torch.Tensor
    visible: torch.Tensor
    key_scale: torch.Tensor | None


_RAGGED = ((0, 0, 0), (1, 1, 2), (63, 64, 64), (65, 66, 66), (16, 17, 17))
_SHAPES = (
    Case("one block", ((1,),)),
    Case("nothing visible", ((0, 0), (0, 0)), spare_pages=2),
    Case("one row, odd", ((77,), (130,), (31,))),
    Case("two rows, empty request first", ((0, 0), (99, 100))),
    Case("three rows, ragged", _RAGGED, spare_pages=3),
    Case("verify of four", ((332, 332, 333, 333), (200, 201, 201, 201))),
    Case(
        "long beside short", ((659, 659, 660, 660), *((3, 4, 4, 4),) * 6), spare_pages=5
    ),
    Case("padded heads, pages apart", ((90, 91),), padded_heads=8, page_gap=3),
    Case("pages of 8", ((45, 45, 45, 46),), page_size=8),
    Case("pages of 64", ((129, 129, 130, 130),), page_size=64),
)


def _far(key_format: KeyFormat) -> Case:
    width = HEAD_DIM // 2 if key_format == KeyFormat.MXFP4 else HEAD_DIM
    page = 2**31 // (PAGE_SIZE * width) + 7
    return Case("beyond 2^31", ((40, 41, 41, 41),), first_page=page)


CASES: Final = tuple(
    replace(case, name=f"{key_format.name.lower()}: {case.name}", key_format=key_format)
    for key_format in KeyFormat
    for case in (*_SHAPES, _far(key_format))
)


def long_case(requests: int, rows: int, tokens: int, key_format: KeyFormat) -> Case:
    """Decode or verify of equal requests whose last row is at `tokens`."""
    seen = tuple((tokens - rows + 1 + row) // RATIO for row in range(rows))
    name = f"{requests} x {tokens}"
    return Case(name, (seen,) * requests, key_format, padded_heads=2 * HEADS)


def inputs(case: Case, device: torch.device, *, sets: int = 1) -> list[Inputs]:
    """Random inputs; `sets` of them share a pool and no page of it.

    Pages lie in random order. Whatever no row may read (page 0, pages between, keys
    past the longest row) keeps what `torch.empty` gave it, NaN under test.
    """
    generator = torch.Generator(device).manual_seed(len(case.visible) + sets)
    requests, rows = len(case.visible), len(case.visible[0])
    pages = max(1, *(-(-max(row) // case.page_size) for row in case.visible))
    count = sets * requests * pages
    order = torch.randperm(count, generator=generator, device=device)
    entries = (sets, requests, pages + case.spare_pages)
    tables = torch.full(entries, NO_PAGE, dtype=torch.int32, device=device)
    tables[..., :pages] = (order + case.first_page).view(sets, requests, pages).int()
    keys, key_scale = _pool(case, count, generator, device)
    visible = torch.tensor(case.visible, dtype=torch.int32, device=device)
    _hide(keys, tables, case)
    shape = (sets, requests, rows, case.padded_heads, HEAD_DIM)
    q = torch.randn(shape, generator=generator, device=device)
    if case.key_format == KeyFormat.E4M3:
        q = q.to(torch.float8_e4m3fn)
    else:
        sizes = torch.randint(-30, 30, shape[:3], generator=generator, device=device)
        q = (q * torch.exp2(sizes[..., None, None])).bfloat16()
    q = q[..., :HEADS, :]
    return [Inputs(q[i], keys, tables[i], visible, key_scale) for i in range(sets)]


def _pool(
    case: Case, count: int, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys and scales of pages [first_page, first_page + count), NaN or 0xFF before."""
    shape = (count, case.page_size, HEAD_DIM)
    values = torch.randn(shape, generator=generator, device=device).bfloat16()
    if case.key_format == KeyFormat.BF16:
        return _spread(values, case), None
    if case.key_format == KeyFormat.E4M3:
        return _spread(values.to(torch.float8_e4m3fn), case), None
    quantise = quantise_mxfp4
    if case.key_format == KeyFormat.E4M3_SCALED:
        quantise = quantise_e4m3
    sizes = torch.exp2(
        torch.randint(-9, 9, shape[:2], generator=generator, device=device)
    )
    codes, scale = quantise(values * sizes[..., None])
    return _spread(codes, case), _spread(scale, case)


def _spread(pages: torch.Tensor, case: Case) -> torch.Tensor:
    """The pages at their place in a larger pool."""
    total = case.first_page + len(pages)
    shape = (total, case.page_gap, *pages.shape[1:])
    pool = torch.empty(shape, dtype=pages.dtype, device=pages.device)[:, 0]
    pool[case.first_page :] = pages
    return pool


def _hide(keys: torch.Tensor, tables: torch.Tensor, case: Case) -> None:
    """Poison the keys of a request's last page that none of its rows sees."""
    poison = torch.full((), 0xFF, dtype=torch.uint8, device=keys.device)
    for request, visible in enumerate(case.visible):
        page, used = divmod(max(visible), case.page_size)
        if used:
            last = tables[:, request, page].long()
            keys.view(torch.uint8)[last, used:] = poison
