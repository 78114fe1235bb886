"""The shapes and scores that test and benchmark of `topk` share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

HEADS, HEAD_DIM, RATIO = 4, 128, 4


@dataclass(frozen=True, slots=True)
class Case:
    """One call: `rows` of `width` columns, filled by `scores`.

    `lengths` repeats over the rows; all columns are visible if it is empty. With
    `ragged`, rows start at different columns. Blocks outside a row's range, and all
    blocks of a row that takes everything, are infinite: read, they would be chosen.
    """

    name: str
    rows: int
    width: int
    scores: str
    lengths: tuple[int, ...] = ()
    ragged: bool = False
    stride: int = 0
    gpu_only: bool = False


SMALL = (
    Case("empty row", 3, 100, "relu", (0, 1, 100)),
    Case("at the budget", 4, 700, "relu", (511, 512, 513, 700)),
    Case("no row", 0, 600, "relu"),
    Case("one tile", 2, 8192, "relu", (8191, 8192)),
    Case("odd width", 3, 4999, "relu", (4999, 1023, 3)),
    Case("two levels", 2, 8193, "relu", (8193, 8192)),
    Case("two levels, odd", 3, 20_011, "relu", (20_011, 9_001, 700)),
    Case("three levels", 2, 140_003, "relu", (140_003, 20_000)),
    Case("ragged prefill", 5, 12_345, "relu", (12_000, 9_999, 600, 2, 8_300), True),
    Case("ragged, three levels", 2, 150_001, "relu", (150_000, 131_073), True),
    Case("all zero", 2, 9_001, "zero"),
    Case("all zero, one tile", 2, 1_000, "zero"),
    Case("fewer than 512 above zero", 2, 12_000, "sparse"),
    Case("five values", 2, 9_500, "five"),
    Case("five values, one tile", 2, 3_000, "five"),
    Case("uniform", 2, 32_768, "uniform"),
    Case("within one percent", 2, 32_768, "close"),
    Case("within rounding", 2, 16_384, "adjacent"),
    Case("keys share 1 sigma", 2, 32_768, "shared 1.0"),
    Case("keys share 2 sigma", 2, 16_384, "shared 2.0"),
    Case("ascending", 1, 20_000, "ascending"),
    Case("descending", 1, 20_000, "descending"),
    Case("best blocks adjacent", 2, 20_000, "adjacent best"),
    Case("best blocks one a group", 2, 20_011, "apart", (20_003, 20_011)),
    Case("signed, with both zeros", 2, 9_000, "signed"),
    Case("none above minus zero", 2, 9_000, "minus zero"),
    Case("infinities", 2, 9_000, "infinite"),
)
LARGE = (
    *(
        Case(f"{rows} x {width}, {scores}", rows, width, scores, gpu_only=True)
        for rows, width in (
            (4, 32_768),
            (4, 65_536),
            (2, 1_048_576),
            (1, 2_097_152),
        )
        for scores in (
            "relu",
            "shared 1.0",
            "uniform",
            "close",
            "zero",
            "sparse",
            "five",
        )
    ),
    Case("beyond 2^31", 3, 40_000, "relu", stride=(1 << 30) + 7, gpu_only=True),
    Case(
        "causal prefill",
        700,
        30_000,
        "uniform",
        tuple(range(0, 30_000, 43)),
        ragged=True,
        gpu_only=True,
    ),
)
DECODE = tuple(
    Case(f"{rows} x {width}", rows, width, "relu", gpu_only=True)
    for rows, width in (
        (1, 2_048),
        (4, 2_048),
        (4, 8_192),
        (4, 32_768),
        (4, 65_536),
        (4, 262_144),
        (32, 65_536),
        (64, 8_192),
        (64, 32_768),
        (256, 8_192),
    )
)
PREFILL = tuple(
    Case(f"2048 x {width}", 2048, width, "relu", gpu_only=True)
    for width in (8_192, 32_768, 65_536)
)
CASES = SMALL + LARGE + DECODE + PREFILL
"""What the test runs; the benchmark measures `DECODE` and `PREFILL`."""

BUDGET = 512


@dataclass(frozen=True, slots=True)
class Inputs:
    scores: torch.Tensor
    lengths: torch.Tensor
    row_starts: torch.Tensor | None


def inputs(case: Case, device: torch.device, *, seed: int = 0) -> Inputs:
    """The arguments of one call."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (case.rows, case.width)
    lengths = torch.tensor(case.lengths or (case.width,), dtype=torch.int32)
    lengths = lengths.repeat(-(-case.rows // len(lengths)))[: case.rows].to(device)
    starts = None
    if case.ragged:
        room = case.width - lengths
        starts = (torch.arange(case.rows, device=device) * 7 % (room + 1)).int()
    stride = case.stride or case.width
    whole = torch.empty(max(case.rows - 1, 0) * stride + case.width, device=device)
    scores = whole.as_strided(shape, (stride, 1))
    scores.copy_(fill(case.scores, shape, generator))
    column = torch.arange(case.width, device=device)
    first = 0 if starts is None else starts[:, None]
    hidden = (column < first) | (column >= first + lengths[:, None])
    scores.masked_fill_(hidden | (lengths <= BUDGET)[:, None], math.inf)
    return Inputs(scores, lengths, starts)


def fill(kind: str, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """[rows, width] fp32 scores of one kind."""
    if kind.startswith("shared "):
        return _shared(float(kind.split()[1]), shape, generator)
    return _FILLS[kind](shape, generator)


def _shared(
    sigma: float, shape: tuple[int, int], generator: torch.Generator
) -> torch.Tensor:
    """QSA scores of bf16 queries and keys with a common component of `sigma`."""
    rows, width = shape
    common = _normal((HEAD_DIM,), generator)
    common *= sigma * math.sqrt(HEAD_DIM) / common.norm()
    keys = (_normal((width, HEAD_DIM), generator) + common).bfloat16().float()
    queries = _normal((rows, HEADS, HEAD_DIM), generator) + common
    products = queries.bfloat16().float() @ keys.T
    return products.relu_().sum(1) / math.sqrt(HEAD_DIM)


def _relu(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Sums over heads of independent zero-mean products: 1 in 16 is exactly zero."""
    total = _normal(shape, generator).relu_()
    for _ in range(HEADS - 1):
        total += _normal(shape, generator).relu_()
    return total


def _sparse(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    scores = _uniform(shape, generator)
    return scores * (_uniform(shape, generator) < 300 / shape[1])


def _five(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    return (_uniform(shape, generator) * 5).floor()


def _adjacent(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Neighbouring fp32 values just above 3."""
    steps = (_uniform(shape, generator) * shape[1]).int()
    return (torch.full_like(steps, 0x40400000) + steps).view(torch.float32)


def _ascending(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    return _uniform(shape, generator).sort(1).values


def _adjacent_best(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    scores = _uniform(shape, generator)
    scores[:, 1_000:1_600] += 1
    return scores


def _apart(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """As many groups of 16 are needed as blocks are selected."""
    scores = _uniform(shape, generator)
    scores[:, 5::16] += 1
    return scores


def _signed(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Fewer than 512 above zero, then zeros of both signs, then negative scores."""
    scores = _normal(shape, generator)
    scores = torch.where(scores > 1.9, scores, scores.clamp(max=0.0))
    flipped: torch.Tensor = torch.where(_uniform(shape, generator) < 0.1, -0.0, scores)
    return flipped


def _minus_zero(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    scores = -_uniform(shape, generator)
    return scores.masked_fill(_uniform(shape, generator) < 0.3, -0.0)


def _infinite(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """More than 512 at plus infinity in the first row, fewer in the others."""
    scores = _uniform(shape, generator)
    scores[:, 100::50] = -torch.inf
    scores[:1, 7::13] = torch.inf
    scores[1:, 7::300] = torch.inf
    return scores


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


_FILLS: dict[str, Callable[[tuple[int, int], torch.Generator], torch.Tensor]] = {
    "relu": _relu,
    "zero": lambda shape, generator: torch.zeros(shape, device=generator.device),
    "uniform": _uniform,
    "close": lambda shape, generator: 3 + 0.03 * _uniform(shape, generator),
    "sparse": _sparse,
    "five": _five,
    "adjacent": _adjacent,
    "ascending": _ascending,
    "descending": lambda shape, generator: _ascending(shape, generator).flip(1),
    "adjacent best": _adjacent_best,
    "apart": _apart,
    "signed": _signed,
    "minus zero": _minus_zero,
    "infinite": _infinite,
}
