"""Make the binding of `$QSA_TEST_BROKEN_TARGET` miss the name upstream uses."""

from __future__ import annotations

import dataclasses
import os
from types import ModuleType


def apply(module: ModuleType) -> None:
    for name in ("CONNECTOR", "ADAPTER"):
        binding = getattr(module, name)
        if binding.target == os.environ["QSA_TEST_BROKEN_TARGET"]:
            moved = dataclasses.replace(binding)
            object.__setattr__(moved, "target", f"{binding.target}Moved")
            setattr(module, name, moved)
