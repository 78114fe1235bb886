"""SIGTERM ends a benchmark as Ctrl-C does: its servers stop, and its result is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit code of a benchmark that Ctrl-C or SIGTERM ended."""


@contextmanager
def stopped_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread on SIGTERM while inside."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
