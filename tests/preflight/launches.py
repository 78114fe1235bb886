"""Launches as a user makes them, and how one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_qsa.errors import ConfigError, UpstreamMismatch
from sglang_qsa.preflight import BACKEND_NAME, check_launch
from tests.messages import assert_refusal


def arguments(model: Path, **options: Any) -> Any:
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(model_path=str(model), device="cpu", **options)


def refused(server_args: Any, **parts: str) -> str:
    with pytest.raises((ConfigError, UpstreamMismatch)) as caught:
        check_launch(server_args)
    assert_refusal(caught.value, **parts)
    return str(caught.value)


def hicache(model: Path, **options: Any) -> Any:
    return arguments(
        model,
        radix_cache_backend=BACKEND_NAME,
        enable_hierarchical_cache=True,
        **options,
    )
