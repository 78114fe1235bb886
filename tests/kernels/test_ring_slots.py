"""`ring_slots` equals its reference, and with one group upstream's own kernel."""

from __future__ import annotations

import pytest
import torch

from sglang_qsa_kernels.ring_slots import Step, ring_slots
from sglang_qsa_kernels.ring_slots.cases import CASES, Case, inputs
from sglang_qsa_kernels.ring_slots.reference import ring_slots_reference


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_reference(case: Case, device: torch.device) -> None:
    steps = inputs(case, device)
    given = [step._replace(slots=step.slots.clone()) for step in steps]
    ring_slots(steps, groups=case.groups)
    for found, before in zip(steps, given, strict=True):
        slots, members = ring_slots_reference(
            before.positions, before.requests, ratio=case.ratio, groups=case.groups
        )
        assert torch.equal(found.slots, slots)
        assert torch.equal(found.members, members)


@pytest.mark.parametrize("name", ["decode, padded", "verify of 4", "padding alone"])
def test_padding_rows_stay_in_the_ring_of_nobody(
    name: str, device: torch.device
) -> None:
    case = next(case for case in CASES if case.name == name)
    (step,) = inputs(case, device)
    ring_slots([step], groups=case.groups)
    assert (step.slots[-case.padding :] == 0).all()
    assert (step.members[-case.padding :] == 0).all()


def test_rows_behind_are_left_alone(device: torch.device) -> None:
    """The buffers of a graph are the first rows of larger ones."""
    case = CASES[0]
    (whole,) = inputs(case, device)
    before = [tensor.clone() for tensor in whole]
    ring_slots([Step(*(tensor[:3] for tensor in whole))], groups=case.groups)
    for tensor, kept in zip(whole, before, strict=True):
        assert torch.equal(tensor[3:], kept[3:])
    assert (whole.slots[:3] > 0).all()


INTS = torch.zeros(3, dtype=torch.int32)
GIVEN = Step(INTS, INTS, INTS.long(), torch.zeros(3, 4, dtype=torch.int32))


@pytest.mark.parametrize(
    ("steps", "groups", "message"),
    [
        ([], 2, "steps and groups: found 0 and 2"),
        ([GIVEN], 0, "steps and groups: found 1 and 0"),
        ([GIVEN._replace(positions=INTS.long())], 2, "positions: found int64"),
        ([GIVEN._replace(requests=INTS[:2])], 2, r"requests: found int32 \[2\]"),
        ([GIVEN._replace(slots=INTS)], 2, r"slots: found int32.*int64 \[3\]"),
        ([GIVEN, GIVEN._replace(slots=INTS.long()[:2])], 2, "slots"),
        (
            [GIVEN._replace(members=torch.zeros(4, 3, dtype=torch.int32).mT)],
            2,
            "members.*contiguous",
        ),
    ],
)
def test_refuses(steps: list[Step], groups: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        ring_slots(steps, groups=groups)
    assert "\n" not in str(refused.value)
