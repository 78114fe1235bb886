"""What was moved between the device and the daemon, on the server's own metrics."""

from __future__ import annotations

import time
from typing import Any, Literal

from sglang_qsa import metrics
from sglang_qsa.layout import Layout

STORE = "lmcache"
Direction = Literal["load", "offload"]


class Transfers:
    """Bytes of records, and the time from their hand-over to the daemon's answer.

    Each operation moves the pages of its tokens and one checkpoint.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @staticmethod
    def started(operation: Any) -> None:
        operation.qsa_started_s = time.perf_counter()

    @staticmethod
    def ended(operation: Any, direction: Direction) -> None:
        """The scheduler has seen the answer to an operation that was `started`."""
        seconds = time.perf_counter() - operation.qsa_started_s
        _count("sglang_qsa_transfer_seconds_total", seconds, direction)

    def moved(self, tokens: int, direction: Direction) -> None:
        layout = self._layout
        pages = tokens // layout.geometry.page_tokens
        record_bytes = pages * layout.page_bytes + layout.checkpoint_bytes
        _count("sglang_qsa_transfer_bytes_total", record_bytes, direction)

    def loaded(self, tokens: int) -> None:
        """A load that was accepted."""
        metrics.count("sglang_qsa_loads_total", store=STORE, result="ok")
        metrics.count("sglang_qsa_loaded_tokens_total", tokens, store=STORE)
        self.moved(tokens, "load")


def _count(name: str, amount: float, direction: str) -> None:
    metrics.count(name, amount, store=STORE, direction=direction)
