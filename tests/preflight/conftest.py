from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pools import CONFIG
from tests.upstream_hooks import hooks_in_place


@pytest.fixture(scope="module")
def launch_environment(sglang_runtime: None) -> Iterator[None]:
    with hooks_in_place():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path
