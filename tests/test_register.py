"""The entry point runs in every SGLang process: it is light, and it can refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from sglang_qsa.demo.cpu_engine import child_environment
from sglang_qsa.register import register

LIMIT_S = 0.3
PROCESS_TIMEOUT_S = 120


def run(
    program: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", program],
        env=child_environment() | environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )


def test_installed_entry_point_is_register() -> None:
    (ours,) = [e for e in entry_points(group="sglang.srt.plugins") if e.name == "qsa"]
    assert ours.load() is register


def test_import_alone_needs_neither_upstream_nor_torch() -> None:
    program = (
        "import sys, sglang_qsa.register\n"
        "print(sorted({'torch', 'lmcache', 'sglang', 'numpy'} & sys.modules.keys()))"
    )
    result = run(program)
    assert result.stdout == "[]\n", result.stderr


MEASURE = """
import json, sys, time
import sglang.srt.plugins
print("FROM HERE", file=sys.stderr, flush=True)
started = time.perf_counter()
import sglang_qsa.register
sglang_qsa.register.register()
print(time.perf_counter() - started, "lmcache" in sys.modules)
"""
HEAVY = {"torch", "lmcache", "numpy", "transformers", "prometheus_client"}


def test_register_adds_little_to_a_process_of_sglang() -> None:
    """The best of three starts: the machine may be busy."""
    times = []
    for _ in range(3):
        result = run(MEASURE, "-X", "importtime")
        assert result.returncode == 0, result.stderr
        seconds, lmcache = result.stdout.split()
        assert lmcache == "False"
        assert not HEAVY & imported(result.stderr.partition("FROM HERE")[2])
        times.append(float(seconds))
        if times[-1] < LIMIT_S:
            return
    pytest.fail(f"register took {times} s, wanted < {LIMIT_S} s")


def imported(report: str) -> set[str]:
    """Top-level names in a report of `-X importtime`."""
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", report, re.MULTILINE)
    assert "sglang_qsa.register" in names
    return {name.partition(".")[0] for name in names}


def test_malformed_configuration_ends_the_process_through_the_loader(
    tmp_path: Path,
) -> None:
    """SGLang's loader swallows exceptions of plugins; this is none that it swallows."""
    program = "from sglang.srt.plugins import load_plugins; load_plugins(); print('up')"
    result = run(program, SGLANG_QSA_CONFIG=str(tmp_path / "gone.json"))
    assert result.returncode == 2
    assert "up" not in result.stdout
    (line,) = [
        line for line in result.stderr.splitlines() if line.startswith("sglang_qsa: ")
    ]
    assert "gone.json" in line
    assert "Traceback" not in result.stderr
