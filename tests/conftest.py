"""What all tests share: the CPU engine, and options of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from sglang_qsa.demo import cpu_engine
from tests.upstream_hooks import empty_registry, hooks_in_place

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
    with empty_registry() as registry:
        yield registry


@pytest.fixture
def applied(sglang_runtime: None) -> Iterator[Any]:
    with hooks_in_place() as registry:
        yield registry


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
