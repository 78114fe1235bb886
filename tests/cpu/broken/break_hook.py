"""Make SGLang fail to apply the hook on the target `$QSA_TEST_BROKEN_TARGET`.

SGLang logs such a failure and goes on, as it does for a target that moved.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any


def apply(module: ModuleType) -> None:
    registry = module.HookRegistry
    original = registry._apply_target

    def apply_target(target: str, hooks: list[Any]) -> None:
        if target == os.environ["QSA_TEST_BROKEN_TARGET"]:
            raise AttributeError(f"no such target: {target}")
        original(target, hooks)

    registry._apply_target = apply_target
