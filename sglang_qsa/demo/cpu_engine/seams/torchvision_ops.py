"""Import torchvision next to a torch build that its C++ operators do not match.

torchvision/_meta_registrations.py registers shape functions for `torchvision::nms`
(line 163) and its relatives and fails where the operator was never declared. The
PyPI wheel is built for CUDA, so next to a CPU torch its library does not load.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_declared: list[Any] = []
"""Keeps the declarations alive: they vanish with the object that made them."""


def apply(module: ModuleType) -> None:
    if module._has_ops():
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
    _declared.append(library)
