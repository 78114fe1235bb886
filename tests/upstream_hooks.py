"""Take single hooks out of SGLang again."""

from __future__ import annotations

import pkgutil


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
