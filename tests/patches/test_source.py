"""Source found by name and syntax is the source Python itself would report."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

from sglang_qsa.errors import UpstreamMismatch
from sglang_qsa.source import target_source


@pytest.mark.parametrize(
    "target",
    [
        "json",
        "json.decoder.JSONDecoder",
        "json.decoder.JSONDecoder.decode",
        "json.JSONDecoder.decode",  # re-exported by the package
        "asyncio.run",  # re-exported by `import *`
        "contextlib.contextmanager",
        "logging.handlers.RotatingFileHandler.emit",  # written in a base class
        "argparse.ArgumentParser.add_argument",  # written in a base's base
        "multiprocessing.pool.Pool.map",
    ],
)
def test_equals_inspect_getsource(target: str) -> None:
    assert target_source(target) == inspect.getsource(pkgutil.resolve_name(target))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder without `__init__.py`, as SGLang has many."""
    folder = tmp_path / "written_for_this_test" / "inner"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_finds_what_cannot_be_imported(package: Path) -> None:
    (package / "broken.py").write_text(
        "import no_such_module\n\n\ndef f():\n    return 1\n    # the end\n"
    )
    source = target_source("written_for_this_test.inner.broken.f")
    assert source == "def f():\n    return 1\n    # the end\n"
    assert "written_for_this_test" not in sys.modules


def test_follows_relative_imports_and_bases(package: Path) -> None:
    (package / "base.py").write_text("class Base:\n    def m(self): ...\n")
    (package / "user.py").write_text(
        "from .base import Base\nclass Derived(Base):\n    pass\n"
    )
    source = target_source("written_for_this_test.inner.user.Derived.m")
    assert source == "    def m(self): ...\n"


def test_class_named_as_its_base(package: Path) -> None:
    (package / "base.py").write_text("class Same:\n    def m(self): ...\n")
    (package / "user.py").write_text(
        "from . import base\nclass Same(base.Same):\n    pass\n"
    )
    assert "def m" in target_source("written_for_this_test.inner.user.Same.m")


def test_every_definition_of_a_name_counts(package: Path) -> None:
    (package / "twice.py").write_text(
        "if True:\n    def f(): return 1\nelse:\n    def f(): return 2\n"
    )
    source = target_source("written_for_this_test.inner.twice.f")
    assert source == "    def f(): return 1\n    def f(): return 2\n"


@pytest.mark.parametrize(
    "target",
    [
        "json.decoder.JSONDecoder.gone",
        "json.gone.JSONDecoder",
        "no_such_package_here.module.function",
        "zlib.compress",
    ],
)
def test_what_is_not_there_is_named(target: str) -> None:
    with pytest.raises(UpstreamMismatch) as caught:
        target_source(target)
    assert "wanted" in str(caught.value)
    assert "\n" not in str(caught.value)
