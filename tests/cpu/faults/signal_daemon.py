"""Signal the daemon right before the connector makes one kind of request.

A test arms a fault by writing `SIGNAL PROCESS_GROUP` into the file
`$QSA_TEST_FAULTS/<step>`; the next request of that kind consumes it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

STEPS = {
    "lookup": "submit_lookup",
    "retrieve": "submit_load",
    "store": "submit_unguarded_store",
}

_STILL = "TtZX"
"""Stopped, or dead."""
_STILL_S = 5.0


def apply(module: ModuleType) -> None:
    """Wrap the connector's methods; called once, when it is imported."""
    folder = Path(os.environ["QSA_TEST_FAULTS"])
    for step, method in STEPS.items():
        original = getattr(module.QsaConnector, method)
        setattr(module.QsaConnector, method, _after_fault(original, folder / step))


def _after_fault(method: Callable[..., Any], armed: Path) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if armed.exists():
            signum, group = map(int, armed.read_text().split())
            armed.unlink()
            os.killpg(group, signum)
            _wait_until_still(group)
        return method(*args, **kwargs)

    return wrapper


def _wait_until_still(group: int) -> None:
    """A signal returns at once; on a busy machine a thread that runs on another core
    can still answer a request that follows."""
    deadline = time.monotonic() + _STILL_S
    while any(state not in _STILL for state in _states(group)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"threads of process group {group} still run")
        time.sleep(0.001)


def _states(group: int) -> Iterator[str]:
    """Of all threads of the group's processes; see proc_pid_stat(5)."""
    for process in Path("/proc").glob("[0-9]*"):
        # Any of them may end in between.
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(_fields(process)[2]) == group:
                for thread in (process / "task").iterdir():
                    yield _fields(thread)[0]


def _fields(process: Path) -> list[str]:
    """State, parent, group and so on: what follows the command's name."""
    return (process / "stat").read_text().rpartition(")")[2].split()
