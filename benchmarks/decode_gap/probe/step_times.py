"""Write down when the scheduler has each decode step's result.

Times are `time.perf_counter()`, whose zero all processes of a machine share, appended
as native doubles to the file that `QSA_BENCH_STEPS` names.
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
        if batch.forward_mode.is_decode():
            os.write(out, array("d", [time.perf_counter()]).tobytes())
        return done

    scheduler.process_batch_result = noted
