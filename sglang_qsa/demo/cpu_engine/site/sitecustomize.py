"""Switch the CPU engine on in this interpreter, then run the next sitecustomize.

Python imports the first `sitecustomize` on its path when it starts; this one hides
any other, so it hands over explicitly.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from sglang_qsa.demo.cpu_engine import imports, seams

_HERE = Path(__file__).resolve().parent


def _run_next() -> None:
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


imports.install(seams.SEAMS)
_run_next()
