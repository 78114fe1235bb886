"""Where and with what a result was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

_PACKAGES = ("sglang", "lmcache", "torch", "triton", "sglang-qsa")


def describe() -> dict[str, Any]:
    """Hardware, versions and commit, for the head of a result file."""
    return {
        "gpu": _output(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": os.environ.get("QSA_COMMIT") or _output("git", "rev-parse", "HEAD"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _output(*command: str) -> str:
    """First line of a command's output; empty where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
