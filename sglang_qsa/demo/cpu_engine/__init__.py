"""Run the real SGLang server on a machine without a GPU, for the demo and the tests.

SGLang 0.5.23 has a CPU engine, but this model reaches operators that exist only
as CUDA or AMX kernels. Nothing here is loaded by a server with a GPU: the whole
engine is switched on by the environment of one child process.

* `site/` goes to the front of the child's PYTHONPATH. Its `sitecustomize` runs in
  every Python process of the server (the scheduler is a spawned process) and its
  `sgl_kernel` stands in for the CUDA-only wheel of that name.
* `imports` applies a patch right after the upstream module it belongs to.
* `seams/` holds one module per patched place, each with the reason.
* `reference` holds the operators themselves in plain PyTorch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sglang_qsa.demo.cpu_engine.imports import PostImport, install
from sglang_qsa.demo.cpu_engine.seams import SEAMS

_SITE = Path(__file__).resolve().parent / "site"
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]


def child_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `base` (default: this process's environment) with the engine on.

    The caller's own PYTHONPATH keeps its order behind `site/`; a `sitecustomize`
    found there still runs. The root of this package comes last, so that the child
    finds it even where it is not installed.
    """
    environment = dict(os.environ if base is None else base)
    inherited = environment.get("PYTHONPATH", "")
    entries = [str(_SITE), *filter(None, inherited.split(os.pathsep))]
    if str(_PACKAGE_ROOT) not in entries:
        entries.append(str(_PACKAGE_ROOT))
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))
    environment["SGLANG_USE_CPU_ENGINE"] = "1"
    environment["CUDA_VISIBLE_DEVICES"] = ""
    # Tensors are tiny here: more threads only wait for each other, for seconds where
    # another process holds a core.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def activate() -> None:
    """Switch the engine on in this process, as `site/` does in a child's.

    Safe to repeat. Child processes do not inherit it: use `child_environment`.

    Raises:
        RuntimeError: a module that has a seam is already imported.
    """
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if any(isinstance(finder, PostImport) for finder in sys.meta_path):
        return
    sys.path.insert(0, str(_SITE))
    install(SEAMS)
