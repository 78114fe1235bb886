"""Declare the CPU operators before a model asks for them.

qwen3_5.py:284 looks `torch.ops.sgl_kernel.*` up while it is imported; only machines
with AMX would have imported `sgl_kernel` by then (utils/common.py:354). The module
patched here is imported first by everything in `sglang.srt`.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def apply(module: ModuleType) -> None:
    importlib.import_module("sgl_kernel")
