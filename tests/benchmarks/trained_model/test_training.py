"""The model that is trained, and the command that trains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trained_model.__main__ import TOO_WRONG
from sglang_qsa.errors import REFUSED

pytest.importorskip("sgl_eval", reason="needs requirements/bench.txt")


def train(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.trained_model", "--out", str(out)),
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_smoke_run_leaves_a_checkpoint_and_problems(tmp_path: Path) -> None:
    """25 steps teach nothing, and the command says so."""
    done = train(
        tmp_path,
        *("--device", "cpu", "--size", "smoke", "--lengths", "100", "--asked", "3"),
    )
    assert done.returncode == TOO_WRONG, done.stderr
    assert "right {100: 0.0}" in done.stdout
    result = json.loads((tmp_path / "training.json").read_text())
    assert [line["step"] for line in result["training"]] == [25]
    assert 0 < result["training"][0]["loss"] < 10
    assert len((tmp_path / "problems.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "model.safetensors").stat().st_size > 10**6


def test_no_gpu_is_said_in_one_line(tmp_path: Path) -> None:
    done = train(tmp_path / "out", "--device", "cuda")
    assert done.returncode == REFUSED
    assert done.stderr.splitlines()[-1].startswith("benchmarks.trained_model: --device")
    assert not (tmp_path / "out").exists()
