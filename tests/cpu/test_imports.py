"""Patches that run right after an upstream module was imported."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_qsa.demo.cpu_engine.imports import install

UPSTREAM = "def answer():\n    return 1\n"
PATCH = "def apply(module):\n    module.answer = lambda: 2\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "some_upstream.py").write_text(UPSTREAM)
    (tmp_path / "some_patch.py").write_text(PATCH)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in ("some_upstream", "some_patch"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_patch_follows_import() -> None:
    install({"some_upstream": "some_patch"})
    assert "some_patch" not in sys.modules
    upstream = importlib.import_module("some_upstream")
    assert upstream.answer() == 2
    assert inspect.getsource(upstream) == UPSTREAM


@pytest.mark.usefixtures("modules")
def test_imported_too_early() -> None:
    importlib.import_module("some_upstream")
    with pytest.raises(RuntimeError, match="some_upstream"):
        install({"some_upstream": "some_patch"})


def test_the_demo_s_command_line_is_light() -> None:
    """`sglang-qsa` declares the demo's options without importing what runs it."""
    check = "import sys, sglang_qsa.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
