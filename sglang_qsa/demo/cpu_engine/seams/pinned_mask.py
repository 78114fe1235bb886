"""Make `Tensor.pin_memory` a no-op.

schedule_batch.py:3830 pins the tracking mask of a decode batch without asking
whether the platform has pinned memory (its neighbours ask). Torch raises where
there is no accelerator. The tensor is a local, so only the method can be replaced.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def _unpinned(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def apply(module: ModuleType) -> None:
    module.torch.Tensor.pin_memory = _unpinned
