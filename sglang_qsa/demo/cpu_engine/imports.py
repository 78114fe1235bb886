"""Run a function right after a named module was imported for the first time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class PostImport(MetaPathFinder):
    """Finder that lets every other finder do its work, then patches the result.

    Args:
        patches: name of an upstream module -> name of the module whose
            `apply(module)` patches it. The latter is imported only when it is
            needed, so installing the finder costs nothing.
    """

    def __init__(self, patches: Mapping[str, str]) -> None:
        self._patches = dict(patches)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        # The entry is gone, so this look-up goes to the other finders.
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            importlib.import_module(patch).apply(module)

        # An attribute of this one loader object: `get_source` and the rest of the
        # loader protocol stay as they are.
        setattr(spec.loader, "exec_module", execute_and_patch)  # noqa: B010
        return spec


def install(patches: Mapping[str, str]) -> None:
    """Patch each module of `patches` when it is imported.

    Raises:
        RuntimeError: one of the modules is already imported.
    """
    late = sorted(patches.keys() & sys.modules.keys())
    if late:
        raise RuntimeError(f"imported before the CPU engine was installed: {late}")
    sys.meta_path.insert(0, PostImport(patches))
