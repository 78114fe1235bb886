"""The sigmoid gate of the shared expert in PyTorch.

elementwise.py:210 launches a Triton kernel for both `fused_gate_sigmoid_mul` and
`fused_gate_sigmoid_mul_add`.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _gate_shared_expert(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    shared_output: torch.Tensor,
    output: torch.Tensor,
    *,
    do_add: bool,
) -> None:
    logits = (hidden_states.float() * gate_weight.float()).sum(-1, keepdim=True)
    gated = logits.sigmoid() * shared_output.float()
    output.copy_(output.float() + gated if do_add else gated)


def apply(module: ModuleType) -> None:
    module._launch_fused_gate_sigmoid_mul = _gate_shared_expert  # type: ignore[attr-defined]
