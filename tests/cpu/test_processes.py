"""Child processes: readiness, failure with a reason, and nothing left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from sglang_qsa.demo.processes import ManagedProcess, StartFailed

STAND_IN = """
import os, pathlib, signal, subprocess, sys, time
print("hello", flush=True)
{body}
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""


class StandIn(ManagedProcess):
    """A Python process that is ready when it has made a file."""

    name = "stand-in"

    def __init__(self, folder: Path, body: str = "", timeout_s: float = 30) -> None:
        super().__init__(folder / "stand-in.log", timeout_s)
        self._ready = folder / "ready"
        self._script = STAND_IN.format(body=body, ready=str(self._ready))

    def command(self) -> list[str]:
        return [sys.executable, "-c", self._script]

    def is_ready(self) -> bool:
        return self._ready.exists()


def test_ready_then_gone(tmp_path: Path) -> None:
    messages: list[str] = []
    with StandIn(tmp_path) as process:
        process.wait_ready(messages.append)
        assert process.running
        assert process.members() == [process.child.pid]
    assert process.members() == []
    assert process.log == "hello\n"
    assert set(messages) == {"stand-in is starting"}


def test_death_at_start_tells_why(tmp_path: Path) -> None:
    process = StandIn(tmp_path, body="sys.exit('no such model')")
    with process, pytest.raises(StartFailed, match="no such model") as failure:
        process.wait_ready()
    assert failure.value.exit_code == 1
    assert failure.value.log == "hello\nno such model\n"


def test_time_out(tmp_path: Path) -> None:
    process = StandIn(tmp_path, body="time.sleep(600)", timeout_s=0.5)
    with process, pytest.raises(StartFailed, match="not ready after") as failure:
        process.wait_ready()
    assert failure.value.exit_code is None
    assert process.members() == []


def test_exception_in_the_block_stops_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_qsa.demo.processes._STOP_TIMEOUT_S", 0.5)
    body = "print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    process = StandIn(tmp_path, body)
    with pytest.raises(ZeroDivisionError):
        _use_and_fail(process)
    assert process.members() == []


def _use_and_fail(process: StandIn) -> None:
    with process:
        process.wait_ready()
        assert len(process.members()) == 2
        _ = 1 / 0


def test_ignored_request_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_qsa.demo.processes._STOP_TIMEOUT_S", 0.5)
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with StandIn(tmp_path, body) as process:
        process.wait_ready()
    assert process.child.returncode == -9


def test_log_grows_over_restarts(tmp_path: Path) -> None:
    with StandIn(tmp_path) as process:
        process.wait_ready()
        process.kill9()
        process.start()
        deadline = time.monotonic() + 10
        while process.log != "hello\nhello\n":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_stop_before_start(tmp_path: Path) -> None:
    StandIn(tmp_path).stop()
    assert os.listdir(tmp_path) == []
