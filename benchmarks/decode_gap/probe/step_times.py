"""Write down when the scheduler has each batch's result.

Pairs of native doubles, appended to the file that `QSA_BENCH_STEPS` names: the time
(`time.perf_counter()`, whose zero all processes of a machine share), and 0 for a decode
step or 1 for anything else.
"""

from __future__ import annotations

import functools
import os
import time
from array import array
from types import ModuleType
from typing import Any

FILE = "QSA_BENCH_STEPS"


def apply(module: ModuleType) -> None:
    """Wrap `Scheduler.process_batch_result` of sglang 0.5.23; called at its import."""
    scheduler = module.Scheduler
    original = scheduler.process_batch_result
    # For the life of the process; whole writes, for it may end at any time.
    out = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @functools.wraps(original)
    def noted(self: Any, batch: Any, *rest: Any, **options: Any) -> Any:
        done = original(self, batch, *rest, **options)
        other = not batch.forward_mode.is_decode()
        os.write(out, array("d", [time.perf_counter(), other]).tobytes())
        return done

    scheduler.process_batch_result = noted
