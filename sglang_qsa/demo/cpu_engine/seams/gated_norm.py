"""`rms_norm_gated` in PyTorch.

layernorm_gated.py:355 launches a Triton kernel; the gated norm behind every GDN
layer has no CPU path.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def apply(module: ModuleType) -> None:
    from sglang_qsa.demo.cpu_engine import reference

    def rms_norm_gated(
        *,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        z: torch.Tensor | None = None,
        eps: float = 1e-6,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        is_rms_norm: bool = False,
        activation: str = "swish",
    ) -> torch.Tensor:
        if bias is not None or not is_rms_norm or group_size not in (None, x.shape[-1]):
            raise NotImplementedError("the CPU engine has the ungrouped RMS norm only")
        return reference.gated_rms_norm(x, weight, z, eps, norm_before_gate, activation)

    module.rms_norm_gated = rms_norm_gated  # type: ignore[attr-defined]
