"""Room for what `widen_ring` addresses."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

GROUPS = 2


def apply(module: ModuleType) -> None:
    initialise = module.QSATokenToKVPool.__init__

    @functools.wraps(initialise)
    def widen(pool: Any, *args: Any, num_request_slots: int, **options: Any) -> None:
        slots = GROUPS * num_request_slots
        initialise(pool, *args, num_request_slots=slots, **options)

    module.QSATokenToKVPool.__init__ = widen
