"""Each upstream version is written in several files; they agree."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from sglang_qsa.manifest import load_manifest

ROOT = Path(__file__).parents[2]


def pins(name: str) -> list[str]:
    """Requirements of one list, without its comments."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and line[0] != "#"]


def test_cpu_install_has_the_declared_sglang() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pin, *_ = project["project"]["dependencies"]
    assert pin in pins("cpu-no-deps.txt")
    assert pin == f"sglang=={version('sglang')}"


def test_lmcache_is_pinned() -> None:
    assert pins("lmcache.txt") == [f"lmcache=={version('lmcache')}"]


def test_manifest_names_these_versions() -> None:
    known = {*pins("cpu-no-deps.txt"), *pins("lmcache.txt")}
    assert {record.upstream for record in load_manifest()} <= known


def test_requirements_are_plain_names() -> None:
    """No index, no link, no path: any registry of the user's will do."""
    for file in (ROOT / "requirements").glob("*.txt"):
        for pin in pins(file.name):
            assert re.fullmatch(r"[\w.-]+([=<>!~]=?[\w.+]+,?)*", pin), pin


def test_kernels_folder_is_no_package() -> None:
    """With an `__init__.py` it would hide PyPI's `kernels`, which SGLang imports."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
