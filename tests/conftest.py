"""What all tests share: the CPU engine, and options of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from sglang_qsa.demo import cpu_engine
from sglang_qsa.hooks import HOOKS
from sglang_qsa.hooks.base import register
from tests.upstream_hooks import unapply

# The same examples in every run: a red test must be red for its commit. No deadline:
# the machine may be busy.
settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden from the code instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Switch the CPU engine on before a test module imports SGLang.

    A run of the GPU tests alone (`-m gpu`) stays on the machine's own engine.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
        cpu_engine.activate()


@pytest.fixture(scope="session")
def sglang_runtime() -> None:
    """The process-wide settings that SGLang's pools and caches read."""
    from sglang.srt.runtime_context import get_parallel, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    reset_context()
    arguments = ServerArgs(model_path="dummy", device="cpu", page_size=64)
    arguments._mamba_cache_chunk_size = 64
    publish(arguments, role="tokenizer")
    get_parallel().override_permanently(tp_rank=0, pp_rank=0)


@pytest.fixture
def registry(sglang_runtime: None) -> Iterator[Any]:
    """SGLang's hook registry, empty; afterwards upstream is as it was."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.reset()
    yield HookRegistry
    for target in list(HookRegistry._patched):
        unapply(target)
    HookRegistry.reset()


@pytest.fixture
def applied(registry: Any) -> Any:
    """The hooks of this package, registered and applied as `load_plugins` does."""
    register(HOOKS)
    registry.apply_hooks()
    return registry


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
