"""Which tree cache a launch gets."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa import backend
from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.hooks.routing import register_backend, route_default
from sglang_qsa.preflight import BACKEND_NAME
from sglang_qsa.tiers.linker.options import CLASS, MODULE

OURS, UPSTREAMS = object(), object()

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Contexts that reached the plugin's factory, which builds nothing here."""
    contexts: list[Any] = []

    def create(ctx: Any) -> object:
        contexts.append(ctx)
        return OURS

    monkeypatch.setattr(backend, "create_cache", create)
    return contexts


@pytest.fixture
def backends() -> Iterator[dict[str, Any]]:
    """Upstream's registry of tree caches, as it was before."""
    from sglang.srt.mem_cache import registry

    before = dict(registry._RADIX_CACHE_REGISTRY)
    yield registry._RADIX_CACHE_REGISTRY
    registry._RADIX_CACHE_REGISTRY.clear()
    registry._RADIX_CACHE_REGISTRY.update(before)


def context(
    architecture: str | None = ARCHITECTURE, *, disable_radix_cache: bool = False
) -> Any:
    names = None if architecture is None else [architecture]
    return SimpleNamespace(
        disable_radix_cache=disable_radix_cache,
        model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=names)),
    )


def route(ctx: Any, *, enable_lmcache: bool) -> object:
    from sglang.srt.runtime_context import get_memory

    with get_memory().override(enable_lmcache=enable_lmcache):
        return route_default(lambda _ctx: UPSTREAMS, ctx)


def test_our_model_with_lmcache_is_ours(created: list[Any]) -> None:
    ctx = context()
    assert route(ctx, enable_lmcache=True) is OURS
    assert created == [ctx]


@pytest.mark.parametrize(
    ("linker", "expected"), [(CLASS, OURS), ("Another", UPSTREAMS)]
)
def test_our_linker_is_ours(created: list[Any], linker: str, expected: object) -> None:
    from sglang.srt.runtime_context import get_memory

    config = {"linker_module_path": MODULE, "linker": linker}
    with get_memory().override(
        enable_unified_cache_external_linker=True,
        unified_cache_external_linker_config=config,
    ):
        assert route(context(), enable_lmcache=False) is expected
        assert route(context(None), enable_lmcache=False) is UPSTREAMS
    assert route(context(), enable_lmcache=False) is UPSTREAMS


@pytest.mark.parametrize(
    ("ctx", "enable_lmcache"),
    [
        (context(), False),
        (context("Qwen3NextForCausalLM"), True),
        (context(None), True),
        (context(disable_radix_cache=True), True),
    ],
    ids=["no lmcache", "another model", "no architecture", "no radix cache"],
)
def test_anything_else_is_upstream_s(
    created: list[Any], ctx: Any, enable_lmcache: bool
) -> None:
    """Never worse: without the tier, or for another model, nothing changes."""
    assert route(ctx, enable_lmcache=enable_lmcache) is UPSTREAMS
    assert created == []


def test_backend_is_registered_once(backends: dict[str, Any]) -> None:
    backends.pop(BACKEND_NAME, None)
    register_backend()
    assert backends[BACKEND_NAME] is backend.create_cache
    register_backend()
    assert list(backends).count(BACKEND_NAME) == 1


def test_upstream_finds_the_backend_by_name(
    applied: Any, backends: dict[str, Any], created: list[Any]
) -> None:
    """Through the hooks: registered just before upstream looks the name up."""
    from sglang.srt.mem_cache import registry
    from sglang.srt.runtime_context import get_memory

    backends.pop(BACKEND_NAME, None)
    with (
        get_memory().override(radix_cache_backend=BACKEND_NAME),
        pytest.raises(AttributeError),  # what upstream then asks of a real cache
    ):
        registry.create_tree_cache(context())
    assert len(created) == 1


def test_plain_lmcache_is_routed_through_the_hook(
    applied: Any, backends: dict[str, Any], created: list[Any]
) -> None:
    from sglang.srt.mem_cache import registry
    from sglang.srt.runtime_context import get_memory

    with get_memory().override(enable_lmcache=True):
        assert registry.default_radix_cache_factory(context()) is OURS
    assert len(created) == 1


def test_cache_is_not_built_without_the_hooks(
    registry: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The backend can be reached although the hooks did not apply."""
    with pytest.raises(SystemExit) as exit_:
        backend.create_cache(context())
    assert exit_.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("sglang_qsa: ")
    assert "hooks not applied" in line
