"""The forwards that the tests of `ring_slots` share: what a replay gives its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_qsa_kernels.ring_slots import Step

RATIO = 4


@dataclass(frozen=True, slots=True)
class Case:
    """`requests` with `rows` query rows each in each of `steps`, and padding behind."""

    name: str
    requests: int
    rows: int = 1
    padding: int = 0
    steps: int = 1
    ratio: int = RATIO
    groups: int = 2
    first_request: int = 1


CASES = (
    Case("decode", 5),
    Case("decode, padded", 5, padding=3),
    Case("one row", 1),
    *(Case(f"verify of {rows}", 4, rows=rows, padding=rows) for rows in (1, 2, 3, 4)),
    Case("draft of 3 steps", 6, padding=2, steps=3),
    Case("draft of 1 step", 200, steps=1),
    Case("more rows than a program", 129, rows=2, padding=1),
    Case("padding alone", 0, padding=8),
    Case("no row", 0),
    Case("upstream's ring", 9, groups=1),
    Case("other ratio, three groups", 9, ratio=8, groups=3),
    Case("slots beyond 2^31", 2, first_request=2**29),
)


def inputs(case: Case, device: torch.device, *, seed: int = 0) -> list[Step]:
    """Steps whose outputs hold what no ring has."""
    generator = torch.Generator(device).manual_seed(seed)
    count = case.requests * case.rows
    base = torch.randint(
        0, 3 * case.ratio, (case.requests,), generator=generator, device=device
    )
    requests = torch.arange(case.requests, device=device) + case.first_request
    return [
        Step(
            _padded((base[:, None] + offset(case, step, device)).flatten(), case),
            _padded(requests.repeat_interleave(case.rows), case),
            torch.full((count + case.padding,), -1, device=device),
            torch.full(
                (count + case.padding, case.ratio), -1, dtype=torch.int32, device=device
            ),
        )
        for step in range(case.steps)
    ]


def offset(case: Case, step: int, device: torch.device) -> torch.Tensor:
    """Of the rows of one request from its first in the first step."""
    return torch.arange(case.rows, device=device) + step


def _padded(values: torch.Tensor, case: Case) -> torch.Tensor:
    return torch.cat([values, values.new_zeros(case.padding)]).int()
