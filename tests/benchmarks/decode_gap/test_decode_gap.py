"""The decode-gap benchmark: its arithmetic, its refusals, and a small real run."""

from __future__ import annotations

import json
import os
import signal
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.decode_gap import command
from benchmarks.decode_gap.command import main
from benchmarks.decode_gap.report import as_markdown, as_result, spread
from benchmarks.decode_gap.schedule import (
    Measured,
    Notes,
    Window,
    Workload,
    _window,
    gaps,
)
from sglang_qsa.demo.client import Generation

SMALL = [
    *("--device", "cpu", "--tiny", "--variants", "ours", "--streams", "1"),
    *("--stream-tokens", "600", "--prompt-tokens", "1500", "--prompts", "5"),
    *("--restores", "4", "--host-gb", "1"),
]


def answer(host_tokens: int) -> Generation:
    return Generation(1800, 64, host_tokens, 0, (5,), (0.0,), 0.02)


def measured(gap_s: float, host_tokens: int) -> Measured:
    window = Window([gap_s] * 3, [gap_s] * 3, [gap_s] * 3)
    calls = {"backup": [0.0001] * 2, "load": [0.0002] * 2 if host_tokens else []}
    return Measured(window, window, None, calls, [answer(host_tokens)] * 2, None, None)


def test_gaps_end_in_the_span() -> None:
    times = [0.0, 1.0, 1.5, 4.0, 9.0]
    assert gaps(times, (1.0, 4.0)) == [1.0, 0.5, 2.5]
    assert gaps(times, (10.0, 11.0)) == []


def test_too_few_tokens_are_no_figure() -> None:
    streams: list[Any] = [SimpleNamespace(times_s=[0.0, 1.0, 2.0])]
    steps = [(0.0, False), (1.0, False), (2.0, True), (2.5, False)]
    window = _window("quiet", (0.5, 3.0), streams, steps)
    assert window.client_s == [1.0, 1.0]
    assert window.scheduler_s == [1.0, 1.0, 0.5]
    assert window.plain_s == [1.0, 0.5]
    with pytest.raises(RuntimeError, match=r"found 1 gaps .* at the scheduler"):
        _window("quiet", (0.5, 3.0), streams, steps[:3])


def test_steps_beside_a_prompt(tmp_path: Path) -> None:
    notes = Notes(steps=tmp_path / "steps", calls=tmp_path / "calls")
    rows = [0.5, 1, 1.0, 0, 1.25, 0, 1.5, 0, 2.0, 1, 2.25, 1, 2.5, 0, 3.0, 0]
    notes.steps.write_bytes(array("d", rows).tobytes())
    beside = {1.0: True, 1.25: False, 1.5: True, 2.5: True, 3.0: False}
    assert notes.step_times() == list(beside.items())


def test_spread() -> None:
    found = spread([0.001 * n for n in range(101)])
    assert found["n"] == 101
    assert found["p50"] == pytest.approx(50)
    assert found["p99"] == pytest.approx(99)
    assert found["max"] == pytest.approx(100)


def test_what_host_memory_adds_is_the_difference() -> None:
    workload = Workload(1, 1500, 5, 4, 600, 0)
    result = as_result(
        workload, {"ours": measured(0.012, 1472), "ours-device": measured(0.010, 0)}
    )
    assert result["variants"]["ours"]["restored_share"] == 1
    assert result["variants"]["ours-device"]["restored_share"] == 0
    assert result["added_ms"]["ours"]["scheduler_ms"]["p99"] == pytest.approx(2)
    machine = {"gpu": "", "cpu": "x", "versions": {"sglang": "1", "torch": "2"}}
    facts = {"machine": machine | {"commit": "abc"}, "note": ""}
    table = as_markdown(facts | result)
    assert "client +2.00 ms, scheduler +2.00 ms" in table
    assert "between +2.00 ms" in table
    assert "| ours | load | 2 | 200.0 / 200.0 / 200.0 |" in table
    assert "| ours-device | load" not in table


def test_calls_of_the_span(tmp_path: Path) -> None:
    notes = Notes(steps=tmp_path / "steps", calls=tmp_path / "calls")
    assert notes.call_times((0, 9)) == {"backup": [], "load": []}
    rows = [1.0, 0, 0.5, 2.0, 1, 0.25, 9.5, 1, 0.125]
    notes.calls.write_bytes(array("d", rows).tobytes())
    assert notes.call_times((1, 9)) == {"backup": [0.5], "load": [0.25]}


def test_nothing_to_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "out"), "--restores", "0"])
    assert ended.value.code == 2
    assert "--restores: found 0; wanted 1 or more" in capsys.readouterr().err


def test_prompts_that_the_device_would_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "out"), "--prompts", "2"])
    assert ended.value.code == 2
    assert "found 2 prompts of 32,768 tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.server
def test_every_prompt_is_restored(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), *SMALL]) == 0
    result = json.loads((tmp_path / "decode_gap.json").read_text())
    ours = result["variants"]["ours"]
    assert ours["restored_share"] == 1
    for place in ("client_ms", "scheduler_ms"):
        assert ours["quiet"][place]["n"] > 5
        assert ours["restores"][place]["n"] > 5
        assert ours["quiet"][place]["p50"] > 0
    assert ours["restores"]["plain_ms"]["n"] < ours["restores"]["scheduler_ms"]["n"]
    assert ours["calls_us"]["load"]["n"] >= ours["ttft_ms"]["n"]


class Idle:
    """In place of a server: when it was started and stopped."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events

    def __enter__(self) -> Idle:
        self._events.append(f"start {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if f"stop {self._name}" not in self._events:
            self._events.append(f"stop {self._name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of two servers, of which the one called stock is never measured."""
    events: list[str] = []

    def interrupted(name: str, *_: object) -> Measured:
        events.append(f"measure {name}")
        if name == "stock":
            os.kill(os.getpid(), signal.SIGTERM)
        return measured(0.01, 1472)

    idle = lambda name, *_: (Idle(name, events), None)  # noqa: E731
    monkeypatch.setattr(command, "_server", idle)
    monkeypatch.setattr(command, "_measured", interrupted)
    return events


def test_what_was_measured_is_kept(
    tmp_path: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM in the second server."""
    assert main(["--out", str(tmp_path), "--variants", "ours", "stock"]) == 130
    assert "stock: interrupted; partial result" in capsys.readouterr().err
    result = json.loads((tmp_path / "decode_gap.json").read_text())
    assert list(result["variants"]) == ["ours"]
    assert result["stopped"] == "stock: interrupted"
    assert events == [
        *("start ours", "measure ours", "stop ours"),
        *("start stock", "measure stock", "stop stock"),
    ]


def test_nothing_was_measured(
    tmp_path: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM in the first server of two that were started together."""
    options = ["--out", str(tmp_path), "--together", "--variants", "stock", "ours"]
    assert main(options) == 130
    assert "stock: interrupted\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert events[:3] == ["start stock", "start ours", "measure stock"]
    assert sorted(events[3:]) == ["stop ours", "stop stock"]
