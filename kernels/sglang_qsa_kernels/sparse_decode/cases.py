"""The shapes that test and benchmark of `sparse_decode` share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

BUDGET, TAIL, RATIO = 2048, 3, 4
SLOT_ZERO = 64
"""First slot in use: SGLang's page 0 is inert."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of `batch` requests with `rows` rows each.

    `contexts` repeats over the requests. `format` is bf16, fp8 (with a scale per token
    and head) or fp8 plain (without).
    """

    name: str
    batch: int
    rows: int
    contexts: tuple[int, ...]
    format: str = "bf16"
    heads: int = 24
    kv_heads: int = 2
    dim: int = 256
    budget: int = BUDGET
    first_slot: int = SLOT_ZERO
    gpu_only: bool = False


FORMATS = ("bf16", "fp8", "fp8 plain")
SMALL = (
    *(Case(f"verify, {kind}", 1, 2, (2_600,), kind) for kind in FORMATS),
    *(
        Case(f"short rows, {kind}", 7, 1, (1, 2, 3, 4, 63, 130, 555), kind, budget=256)
        for kind in FORMATS
    ),
    Case("one rank of two", 1, 1, (2_100,), heads=12, kv_heads=1),
    Case("one rank of two, fp8", 1, 1, (300,), "fp8", heads=12, kv_heads=1, budget=128),
    Case("small heads", 3, 3, (70, 700, 701), heads=6, kv_heads=2, dim=32, budget=64),
    Case("group of 20", 1, 2, (100,), heads=20, kv_heads=1, dim=64, budget=64),
    Case("no row", 0, 1, (), budget=64),
)
LARGE = (
    *(
        Case(f"beyond 2^31, {kind}", 1, 4, (5_000,), kind, gpu_only=True, first_slot=at)
        for kind, at in (("bf16", 4_300_000), ("fp8", 4_300_000))
    ),
    *(
        Case(f"mixed contexts, {kind}", 9, 4, (1, 9, 500, 4_096, 30_000), kind,
             gpu_only=True)
        for kind in FORMATS
    ),
)  # fmt: skip
MEASURED = tuple(
    Case(f"{batch} x {rows}, {kind}", batch, rows, (32_768,), kind, gpu_only=True)
    for kind in ("bf16", "fp8")
    for rows in (1, 4)
    for batch in (1, 2, 4, 8, 16, 32, 64)
)
CASES = SMALL + LARGE + MEASURED
"""What the test runs; the benchmark measures `MEASURED`."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one call, in order, and the named ones."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    tokens: torch.Tensor
    token_slots: torch.Tensor
    row_requests: torch.Tensor
    lengths: torch.Tensor
    softmax_scale: float
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None

    @property
    def positional(self) -> tuple[torch.Tensor, ...]:
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.tokens,
            self.token_slots,
            self.row_requests,
            self.lengths,
        )

    @property
    def named(self) -> dict[str, object]:
        return {
            "softmax_scale": self.softmax_scale,
            "k_scales": self.k_scales,
            "v_scales": self.v_scales,
        }


def inputs(case: Case, device: torch.device, *, seed: int = 0) -> Inputs:
    """Pools of which every slot outside the requests is NaN, pages in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = case.batch * case.rows
    contexts = [case.contexts[at % len(case.contexts)] for at in range(case.batch)]
    token_slots, slots = _pages(case, contexts, device, generator)
    shape = (slots, case.kv_heads, case.dim)
    k_cache, k_scales = _pool(case, shape, token_slots, generator)
    v_cache, v_scales = _pool(case, shape, token_slots, generator)
    lengths = torch.tensor(contexts, dtype=torch.int32, device=device)
    lengths = lengths.repeat_interleave(case.rows)
    # Row j of a verify sees as many tokens less as rows follow it.
    back = torch.arange(case.rows - 1, -1, -1, device=device).repeat(case.batch)
    lengths = (lengths - back).clamp(min=1).int()
    tokens = torch.full(
        (rows, case.budget + TAIL), -1, dtype=torch.int32, device=device
    )
    for row in range(rows):
        chosen = _selection(int(lengths[row]), case.budget, device, generator)
        tokens[row, : len(chosen)] = chosen
    q = torch.randn((rows, case.heads, case.dim), generator=generator, device=device)
    requests = torch.arange(case.batch, device=device).repeat_interleave(case.rows)
    return Inputs(
        q=(2 * q).bfloat16(),
        k_cache=k_cache,
        v_cache=v_cache,
        tokens=tokens,
        token_slots=token_slots,
        row_requests=requests,
        lengths=lengths,
        softmax_scale=1 / math.sqrt(case.dim),
        k_scales=k_scales,
        v_scales=v_scales,
    )


def _pages(
    case: Case, contexts: list[int], device: torch.device, generator: torch.Generator
) -> tuple[torch.Tensor, int]:
    """Slot table of requests whose 64-token pages lie in random order, pool size."""
    page_tokens = 64
    pages = [-(-context // page_tokens) for context in contexts]
    order = torch.randperm(sum(pages), generator=generator, device=device)
    table = torch.zeros(
        (len(pages), max(pages, default=1) * page_tokens),
        dtype=torch.int32,
        device=device,
    )
    offset = torch.arange(page_tokens, device=device)
    taken = 0
    for request, count in enumerate(pages):
        first = order[taken : taken + count] * page_tokens + case.first_slot
        table[request, : count * page_tokens] = (first[:, None] + offset).flatten()
        taken += count
    return table, case.first_slot + taken * page_tokens


def _pool(
    case: Case,
    shape: tuple[int, int, int],
    token_slots: torch.Tensor,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """K or V: normal rows whose sizes differ, in the format of the case."""
    device = token_slots.device
    rows = torch.randn(
        (shape[0] - case.first_slot, *shape[1:]), generator=generator, device=device
    )
    size = torch.rand(rows.shape[:2], generator=generator, device=device) + 0.5
    rows *= size[..., None]
    kind = torch.bfloat16 if case.format == "bf16" else torch.float8_e4m3fn
    pool = torch.full(shape, math.nan, device=device, dtype=kind)
    if case.format != "fp8":
        pool[case.first_slot :] = rows.to(kind)
        return pool, None
    scales = torch.full(shape[:2], math.nan, device=device)
    scale = rows.abs().amax(-1) / 448
    scales[case.first_slot :] = scale
    pool[case.first_slot :] = (rows / scale[..., None]).clamp(-448, 448).to(kind)
    return pool, scales


def _selection(
    length: int, budget: int, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Whole groups of the visible ones, ascending, then the open group."""
    groups = length // RATIO
    chosen = torch.randperm(groups, generator=generator, device=device)
    chosen = chosen[: budget // RATIO].sort().values
    offset = torch.arange(RATIO, device=device)
    whole = (chosen[:, None] * RATIO + offset).flatten()
    tail = torch.arange(groups * RATIO, length, device=device)
    return torch.cat((whole, tail)).int()
