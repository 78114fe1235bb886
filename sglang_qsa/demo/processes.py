"""A server as a child process that cannot outlive its `with` block.

It runs in a process group of its own and writes its output to a file. `daemon` and
`server` say what to run.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

HOST = "127.0.0.1"

Progress = Callable[[str], None]
"""Called with what is being waited for, several times a second."""

_PORTS = range(15_000, 31_000)
_POLL_INTERVAL_S = 0.2
_STOP_TIMEOUT_S = 10.0
_TAIL_LINES = 25


class StartFailed(RuntimeError):
    """A process ended, or answered nothing in time, before it was ready.

    Attributes:
        exit_code: negative for a signal, None where it was still running.
        log: everything it had written.
    """

    def __init__(self, reason: str, process: ManagedProcess) -> None:
        self.exit_code = process.child.poll()
        self.log = process.log
        tail = "\n".join(self.log.splitlines()[-_TAIL_LINES:])
        super().__init__(f"{reason}; the end of {process.log_path}:\n{tail}")


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now.

    It is not one that the system gives to connections: another process could have it
    before the server has started.
    """
    source = random.SystemRandom()
    while True:
        port = source.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def ignore_progress(_message: str) -> None:
    """The `Progress` that shows nothing."""


class ManagedProcess:
    """One child process group.

    Subclasses say what to run (`command`, `environment`) and when it is ready
    (`is_ready`, called only while the process runs).

    Args:
        log_path: gets the output; None leaves it on this process's own.
    """

    name = "process"

    def __init__(self, log_path: Path | None, ready_timeout_s: float) -> None:
        self.log_path = log_path
        self._ready_timeout_s = ready_timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def is_ready(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def child(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._child

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def log(self) -> str:
        if self.log_path is None:
            return ""
        return self.log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start the process; its output is appended to the log file."""
        if self.log_path is None:
            self._spawn(None)
            return
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._spawn(log)

    def _spawn(self, log: IO[bytes] | None) -> None:
        self._child = subprocess.Popen(
            self.command(),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, progress: Progress = ignore_progress) -> None:
        """Block until the process serves.

        Raises:
            StartFailed: it ended first, or took longer than its time-out.
        """
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            exit_code = self.child.poll()
            if exit_code is not None:
                raise StartFailed(f"{self.name} ended with exit code {exit_code}", self)
            if self.is_ready():
                return
            progress(f"{self.name} is starting")
            time.sleep(_POLL_INTERVAL_S)
        timeout_s = self._ready_timeout_s
        raise StartFailed(f"{self.name} was not ready after {timeout_s:.0f} s", self)

    def wait_exit(self, timeout_s: float) -> int:
        """Wait for the process to end by itself; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self.child.wait(timeout_s)

    def stop(self) -> None:
        """Ask the process to end, then end its whole group. Safe to repeat."""
        if self._child is None:
            return
        if self.running:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_STOP_TIMEOUT_S)
        self.kill9()

    def kill9(self) -> None:
        """Kill the process as `kill -9 PID` does, and wait until its group is gone.

        Its children notice by themselves and remove what it shared in memory; the
        ones that do not within the time-out are killed.
        """
        self.child.kill()
        self.child.wait()
        self._wait_gone()
        self.signal_group(signal.SIGKILL)
        self._wait_gone()

    def members(self) -> list[int]:
        """Process ids of the group, without those that only wait to be reaped."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                # The command name, in parentheses, may contain anything.
                state, _parent, group, *_ = stat.read_text().rpartition(")")[2].split()
                if int(group) == self.child.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def signal_group(self, signum: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signum)

    def _wait_gone(self) -> None:
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while self.members() and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
