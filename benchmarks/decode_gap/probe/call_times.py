"""Write down how long the scheduler's thread is in each call that submits copies.

Triples of native doubles, appended to the file that `QSA_BENCH_CALLS` names: the time
(`time.perf_counter()`) after the call, 0 for a backup and 1 for a load, the seconds.
"""

from __future__ import annotations

import functools
import os
import time
from array import array
from types import ModuleType
from typing import Any

FILE = "QSA_BENCH_CALLS"
_CALLS = (("start_writing", "write_queue"), ("start_loading", "load_queue"))


def apply(module: ModuleType) -> None:
    """Wrap both calls of sglang 0.5.23's HiCache controller; called at its import."""
    out = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for kind, (name, queue) in enumerate(_CALLS):
        original = getattr(module.HiCacheController, name)
        timed = _timed(original, queue, kind, out)
        setattr(module.HiCacheController, name, timed)


def _timed(original: Any, queue: str, kind: int, out: int) -> Any:
    @functools.wraps(original)
    def timed(self: Any) -> Any:
        if not getattr(self, queue):
            return original(self)
        begun = time.perf_counter()
        done = original(self)
        ended = time.perf_counter()
        os.write(out, array("d", [ended, kind, ended - begun]).tobytes())
        return done

    return timed
