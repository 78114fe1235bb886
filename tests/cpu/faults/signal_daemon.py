"""Signal the daemon right before the connector makes one kind of request.

A test arms a fault by writing `SIGNAL PROCESS_GROUP` into the file
`$QSA_TEST_FAULTS/<step>`; the next request of that kind consumes it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

STEPS = {
    "lookup": "submit_lookup",
    "retrieve": "submit_load",
    "store": "submit_unguarded_store",
}


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
        return method(*args, **kwargs)

    return wrapper
