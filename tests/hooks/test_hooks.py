"""Hooks are in place, or what relies on them refuses to start and names them."""

from __future__ import annotations

import dataclasses
import pkgutil
from typing import Any

import pytest

from sglang_qsa.errors import UpstreamMismatch
from sglang_qsa.hooks import HOOKS, Binding, Hook
from sglang_qsa.hooks.base import register, require_active
from sglang_qsa.hooks.lmcache import ADAPTER, CONNECTOR, bound
from tests.messages import assert_refusal
from tests.upstream_hooks import unapply

REAL_HOOKS = [hook for hook in HOOKS if isinstance(hook, Hook)]
BINDINGS = [CONNECTOR, ADAPTER]
"""Those of a cache under construction; `test_kernels` has the others."""

each_hook = pytest.mark.parametrize("hook", REAL_HOOKS, ids=lambda hook: str(hook.id))

pytestmark = pytest.mark.usefixtures("sglang_runtime")


def missing_hooks() -> list[str]:
    """Ids that `require_active` names."""
    with pytest.raises(UpstreamMismatch) as caught:
        require_active(HOOKS)
    assert_refusal(caught.value, found="hooks not applied: ")
    found = str(caught.value).partition("hooks not applied: ")[2].partition(";")[0]
    return found.split(", ")


def test_applied_hooks_are_found(applied: Any) -> None:
    require_active(HOOKS)
    for hook in REAL_HOOKS:
        assert hasattr(pkgutil.resolve_name(hook.target), "__wrapped__")


def test_hooks_that_were_never_registered(registry: Any) -> None:
    assert missing_hooks() == [hook.id for hook in REAL_HOOKS]


def test_hooks_that_were_registered_and_not_applied(registry: Any) -> None:
    register(HOOKS)
    assert missing_hooks() == [hook.id for hook in REAL_HOOKS]


@each_hook
def test_hook_left_out(registry: Any, hook: Hook) -> None:
    register(other for other in HOOKS if other is not hook)
    registry.apply_hooks()
    assert missing_hooks() == [hook.id]


@each_hook
def test_hook_that_does_not_apply(registry: Any, hook: Hook) -> None:
    """SGLang logs the failure and goes on."""
    gone = dataclasses.replace(hook, target=f"{hook.target}_of_the_past")
    register(gone if other is hook else other for other in HOOKS)
    registry.apply_hooks()
    assert missing_hooks() == [hook.id]


@each_hook
def test_hook_whose_original_was_put_back(applied: Any, hook: Hook) -> None:
    """By another plugin, after all were applied."""
    unapply(hook.target)
    assert missing_hooks() == [hook.id]


@each_hook
def test_hook_whose_place_another_plugin_took(registry: Any, hook: Hook) -> None:
    """The target is wrapped, but not by us."""
    from sglang.srt.plugins.hook_registry import HookType

    register(other for other in HOOKS if other is not hook)
    registry.register(hook.target, lambda *_args, **_kwargs: None, HookType.AFTER)
    registry.apply_hooks()
    assert missing_hooks() == [hook.id]


def test_target_that_its_owner_has_wrapped_itself(registry: Any) -> None:
    """A cache leaves the same mark on a function as a hook does."""
    hook = Hook("example", "sglang_qsa.source._parse", "around", lambda *_args: None)
    assert hasattr(pkgutil.resolve_name(hook.target), "__wrapped__")
    register([hook])
    with pytest.raises(UpstreamMismatch, match="hooks not applied: example"):
        require_active([hook])


# -- bindings --------------------------------------------------------------------


def constructed() -> list[object]:
    """What upstream would construct now."""
    return [pkgutil.resolve_name(binding.target) for binding in BINDINGS]


def test_names_are_bound_inside_and_put_back() -> None:
    originals = constructed()
    connector, adapter = type("C", (), {}), type("A", (), {})
    with bound(connector=connector, adapter=adapter):
        assert constructed() == [connector, adapter]
        with bound(connector=adapter, adapter=connector):
            assert constructed() == [adapter, connector]
        assert constructed() == [connector, adapter]
    assert constructed() == originals


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_names_are_put_back_on_errors(error: type[BaseException]) -> None:
    originals = constructed()
    with pytest.raises(error), bound(connector=type, adapter=type):
        raise error
    assert constructed() == originals


@pytest.mark.parametrize("binding", BINDINGS, ids=lambda binding: str(binding.id))
def test_name_that_upstream_does_not_have(
    binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, name = binding.target.rpartition(".")
    others = [other for other in BINDINGS if other is not binding]
    originals = [pkgutil.resolve_name(other.target) for other in others]
    monkeypatch.delattr(pkgutil.resolve_name(path), name)
    with (
        pytest.raises(UpstreamMismatch) as caught,
        bound(connector=type, adapter=type),
    ):
        pytest.fail("nothing may be constructed")
    assert_refusal(caught.value, origin=binding.id, found=f"no {name}")
    assert not hasattr(pkgutil.resolve_name(path), name)
    assert [pkgutil.resolve_name(other.target) for other in others] == originals
