"""`sglang-qsa top`: look, show, wait."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from sglang_qsa.watch.page import Page, fetch
from sglang_qsa.watch.reading import Reading
from sglang_qsa.watch.view import render

_SHORTEST_S = 0.1
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def run(url: str, *, interval_s: float, once: bool) -> int:
    """Show the server at `url` until it ends or the user does; 0 for the latter.

    Raises:
        ConfigError, NoMetrics: there is nothing to show, or no longer.
    """
    before: Page | None = None
    with suppress(KeyboardInterrupt):
        while True:
            page = fetch(url)
            _show(f"{url}   {time.strftime('%H:%M:%S')}\n\n", Reading(page, before))
            if once:
                break
            before = page
            time.sleep(max(interval_s, _SHORTEST_S))
    return 0


def _show(head: str, reading: Reading) -> None:
    # A file or a pipe gets one screen after the other.
    start = _HOME_AND_CLEAR if sys.stdout.isatty() else ""
    print(start + head + render(reading), end="\n\n", flush=True)
