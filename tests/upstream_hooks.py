"""The hooks of this package inside SGLang's real registry, for some tests only."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang_qsa.hooks import HOOKS
from sglang_qsa.hooks.base import register


@contextmanager
def empty_registry() -> Iterator[Any]:
    """SGLang's hook registry, empty; afterwards upstream is as it was."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.reset()
    try:
        yield HookRegistry
    finally:
        for target in list(HookRegistry._patched):
            unapply(target)
        HookRegistry.reset()


@contextmanager
def hooks_in_place() -> Iterator[Any]:
    """The registry with all hooks registered and applied, as at a launch."""
    with empty_registry() as registry:
        register(HOOKS)
        registry.apply_hooks()
        yield registry


def unapply(target: str) -> None:
    """Put the original back, in every module that has the wrapper by now."""
    from sglang.srt.plugins.hook_registry import _propagate_patch

    owner_path, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    wrapper = getattr(owner, name)
    original = getattr(wrapper, "__wrapped__", None)
    if original is not None:
        setattr(owner, name, original)
        _propagate_patch(wrapper, original, owner)
