"""The hooks' cost can be measured: the stand-ins have what the hooks ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import hook_cost
from sglang_qsa.hooks import active


def test_every_request_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_cost, "REPEATS", 3)
    assert hook_cost.main(["--out", str(tmp_path)]) == 0
    assert active.rule() is None
    measured = json.loads((tmp_path / "hook_cost.json").read_text())["us"]
    assert len(measured) == 2 * len(hook_cost.PROMPTS)
    assert all(0 < cost["median"] <= cost["p99"] for cost in measured.values())
