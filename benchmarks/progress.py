"""How far a run is, on standard error."""

from __future__ import annotations

import sys
from typing import NoReturn

from tqdm import tqdm


def request_bar(total: int) -> tqdm[NoReturn]:
    """On a terminal a bar; elsewhere a line every ten seconds."""
    interval_s = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(total=total, unit="request", dynamic_ncols=True, mininterval=interval_s)
