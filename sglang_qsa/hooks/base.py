"""What a hook is, how it is registered, and how its absence is noticed.

SGLang logs and swallows a hook that fails to apply, so every entry point of this
package calls `require_active` before it relies on any of them.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_qsa.errors import UpstreamMismatch, refusal


@dataclass(frozen=True, slots=True)
class Hook:
    """One change to upstream behaviour; `id` names its record in the manifest.

    `mode` is the hook type of SGLang's registry.
    """

    id: str
    target: str
    mode: Literal["before", "after", "around", "replace"]
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Binding:
    """A name of upstream that is rebound by its owner, in the processes that need it.

    SGLang's registry would import the target's package in every process.
    """

    id: str
    target: str
    mode: Literal["bind"] = field(default="bind", init=False)


def register(hooks: Iterable[Hook | Binding]) -> None:
    """Hand the hooks to SGLang's registry; they apply after all plugins loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        if isinstance(hook, Hook):
            HookRegistry.register(hook.target, hook.function, HookType(hook.mode))


def resolve(binding: Binding) -> Any:
    """What the name stands for now.

    Raises:
        UpstreamMismatch: the name is not there.
    """
    path, _, name = binding.target.rpartition(".")
    owner = pkgutil.resolve_name(path)
    if not hasattr(owner, name):
        raise UpstreamMismatch(
            refusal(
                found=f"no {name} in {path}",
                wanted="the name that upstream uses",
                origin=f"binding {binding.id}",
                way_out="serve with the pinned sglang and lmcache versions",
            )
        )
    return getattr(owner, name)


def bind(binding: Binding, value: Any) -> Any:
    """Rebind the name and return what it stood for."""
    original = resolve(binding)
    path, _, name = binding.target.rpartition(".")
    setattr(pkgutil.resolve_name(path), name, value)
    return original


def wrap(binding: Binding, function: Callable[..., Any]) -> None:
    """Rebind the name to `function`, called with what it stood for before the rest."""
    original = resolve(binding)

    @functools.wraps(original)
    def bound(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    bind(binding, bound)


def require_active(hooks: Iterable[Hook | Binding]) -> None:
    """Raise `UpstreamMismatch` naming every hook that is not in place."""
    missing = [h.id for h in hooks if isinstance(h, Hook) and not _is_active(h)]
    if missing:
        raise UpstreamMismatch(
            refusal(
                found=f"hooks not applied: {', '.join(missing)}",
                wanted="every hook of sglang_qsa in place",
                origin="SGLang's hook registry",
                way_out="see the log for 'Failed to apply hooks', and serve with the "
                "pinned sglang version",
            )
        )


def _is_active(hook: Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    registered = [entry[1] for entry in HookRegistry._hooks.get(hook.target, ())]
    if hook.function not in registered or hook.target not in HookRegistry._patched:
        return False
    # Another plugin may have put the original back; the wrapper leaves this mark.
    return hasattr(pkgutil.resolve_name(hook.target), "__wrapped__")
