"""Make the binding of `$QSA_TEST_BROKEN_TARGET` miss the name upstream uses."""

from __future__ import annotations

import dataclasses
import os
from types import ModuleType

from sglang_qsa.hooks.base import Binding


def apply(module: ModuleType) -> None:
    for name, binding in list(vars(module).items()):
        if (
            isinstance(binding, Binding)
            and binding.target == os.environ["QSA_TEST_BROKEN_TARGET"]
        ):
            moved = dataclasses.replace(binding, target=f"{binding.target}Moved")
            setattr(module, name, moved)
