"""`sglang-qsa demo --json`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEP_KEYS = {
    "name",
    "prompt_tokens",
    "device_tokens",
    "host_tokens",
    "storage_tokens",
    "recomputed_tokens",
    "seconds",
    "tokens_equal",
    "max_logprob_difference",
}


@pytest.mark.server
def test_demo(tmp_path: Path) -> None:
    demo = subprocess.run(
        [
            *(sys.executable, "-m", "sglang_qsa.cli", "demo", "--json"),
            *("--device", "cpu", "--work-dir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    story = json.loads(demo.stdout)
    assert story["ok"] is True
    assert story["failures"] == []
    assert all(set(step) == STEP_KEYS for step in story["steps"])
    restored = [s for s in story["steps"] if s["name"].startswith("restored")]
    assert [(s["prompt_tokens"], s["storage_tokens"]) for s in restored] == [
        (1000, 960),
        (2900, 2880),
    ]
    assert all(s["tokens_equal"] for s in restored)
    assert all(s["max_logprob_difference"] == 0.0 for s in restored)
    assert "SGLang is starting" in demo.stderr
