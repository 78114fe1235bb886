"""Which device the demo's server uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_NVIDIA_DRIVER = Path("/dev/nvidiactl")
_ASK_TORCH = "import torch; raise SystemExit(not torch.cuda.is_available())"


def resolve_device(wanted: str) -> str:
    """Turn "auto" into "cuda" where this environment's torch sees a GPU, else "cpu".

    Torch is asked in a child process, and only where a driver is present.
    """
    if wanted != "auto":
        return wanted
    if not _NVIDIA_DRIVER.exists():
        return "cpu"
    asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], check=False)
    return "cuda" if asked.returncode == 0 else "cpu"
