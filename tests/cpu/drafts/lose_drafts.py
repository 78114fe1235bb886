"""Zero planes of the pages in host memory, right before they are loaded.

Whatever comes from storage goes through host memory, so this is a loss in either. The
file `$QSA_TEST_LOST_PLANES` names the planes; without it, nothing is lost.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from sglang_qsa.hooks import active
from sglang_qsa.layout import Unit


def apply(module: ModuleType) -> None:
    """Wrap the copies to the device; called once, when they are imported."""
    armed = Path(os.environ["QSA_TEST_LOST_PLANES"])
    load = module.ReferenceCopies.to_device

    @functools.wraps(load)
    def lose_and_load(copies: Any, plan: Any, part: int, stream: Any) -> None:
        layout = active.layout()
        if armed.exists() and layout is not None:
            spans = layout.page.spans()
            for unit, host, _ in copies._rows(plan):
                for name in armed.read_text().split() if unit is Unit.PAGE else ():
                    span = spans[name]
                    rows = copies._kinds[unit].records
                    rows[host, span.offset : span.offset + span.size] = 0
        load(copies, plan, part, stream)

    module.ReferenceCopies.to_device = lose_and_load
