"""Where raw index keys of open groups lie: a ring of whole groups for each request.

A key lies at row `request * groups * ratio + position % (groups * ratio)` of the ring.
Request 0 is nobody's: SGLang gives it, with position 0, to the padding rows of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton

from sglang_qsa_kernels.checks import refuse, require
from sglang_qsa_kernels.ring_slots.kernel import ring_slots_kernel

_BLOCK = 128
"""Rows of one program; more rows than any decode batch has take another."""


class Step(NamedTuple):
    """The query rows of one forward, and what is written for each.

    `positions` and `requests` are [rows] int32, read; `slots` is [rows] int64 and
    `members` [rows, ratio] int32, written. All are contiguous.
    """

    positions: torch.Tensor
    requests: torch.Tensor
    slots: torch.Tensor
    members: torch.Tensor


def ring_slots(steps: Sequence[Step], *, groups: int) -> None:
    """Write the slot of each row's key, and those of the group that would end there.

    One launch, without a wait for the device. A member before position 0 has the slot
    of position 0, as upstream's kernel gives it; no key is made of such a group.

    Args:
        steps: forwards of equally many rows, such as the steps of one draft.
        groups: groups that a request's ring holds.
    Raises:
        ValueError: an argument is not as described.
    """
    rows, ratio = _check(steps, groups)
    if rows:
        ring_slots_kernel[(triton.cdiv(rows, _BLOCK), len(steps))](
            tuple(tuple(step) for step in steps),
            rows,
            RATIO=ratio,
            WIDTH=groups * ratio,
            BLOCK=_BLOCK,
            num_warps=_BLOCK // 32,
        )


def _check(steps: Sequence[Step], groups: int) -> tuple[int, int]:
    if not steps or groups < 1:
        raise refuse(
            origin="ring_slots: steps and groups",
            found=f"{len(steps)} and {groups}",
            wanted="at least 1 of each",
            way_out="pass the forwards to be addressed",
        )
    rows, ratio = steps[0].members.shape
    device = steps[0].members.device
    for step in steps:
        for name, tensor in step._asdict().items():
            shape = (rows, ratio) if name == "members" else (rows,)
            dtype = torch.int64 if name == "slots" else torch.int32
            require(tensor, f"ring_slots: {name}", shape, (dtype,), device)
            if not tensor.is_contiguous():
                raise refuse(
                    origin=f"ring_slots: {name}",
                    found=f"strides {tensor.stride()}",
                    wanted="a contiguous tensor",
                    way_out="pass it as the op's docstring describes it",
                )
    return rows, ratio
