"""Kernel tests: on a GPU for real, without one in Triton's interpreter.

Triton decides at its first import whether it compiles or interprets, and tests
elsewhere import SGLang, which imports Triton. So without a GPU the tests of this
folder run in one child process with `TRITON_INTERPRET=1`, and each item here reports
what the child says about it.

Every floating-point `torch.empty` is filled with NaN and every other one with ones in
all bits: a lane that a kernel does not write, or a byte that it should not have read,
shows in the comparison.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTCOMES = "QSA_KERNEL_OUTCOMES"
"""Names the file of the outcomes, in the environment of the child."""
ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LARGEST_POISONED = 1 << 30
"""Bytes. Pools with addresses beyond 2^31 are larger and hardly used."""

Outcome = dict[str, str]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what `torch.empty` returns, in the tests as in the package."""

    def poisoned(empty: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, **kwargs: poison(empty(*args, **kwargs))

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


def poison(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.nbytes > LARGEST_POISONED:
        return tensor
    if tensor.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return tensor.fill_(float("nan"))
    tensor.view(torch.uint8).fill_(0xFF)
    return tensor


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU these are GPU tests; `-m "not gpu"` must not take them."""
    if ON_GPU:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.gpu)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if ON_GPU or INTERPRETED or HERE not in pyfuncitem.path.parents:
        return None
    here = [
        item.nodeid for item in pyfuncitem.session.items if HERE in item.path.parents
    ]
    outcome = _interpreted(tuple(here)).get(pyfuncitem.nodeid)
    if outcome is None:
        pytest.fail("the interpreter's process ended before this test", pytrace=False)
    if outcome["outcome"] == "skipped":
        pytest.skip(outcome["text"])
    if outcome["outcome"] == "failed":
        pytest.fail(outcome["text"], pytrace=False)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if OUTCOMES not in os.environ or (report.when != "call" and report.passed):
        return
    text = report.longreprtext
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        text = report.longrepr[2].removeprefix("Skipped: ")
    line: Any = {"test": report.nodeid, "outcome": report.outcome, "text": text}
    with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@functools.cache
def _interpreted(tests: tuple[str, ...]) -> dict[str, Outcome]:
    """Outcome of each test in a process that interprets kernels."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--confcutdir", str(HERE), *tests]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        file.touch()
        environment = {**os.environ, "TRITON_INTERPRET": "1", OUTCOMES: str(file)}
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {line["test"]: line for line in lines}
