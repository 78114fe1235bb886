"""What the linker did, on the server's own metrics. All but look-ups and refusals is
counted on the linker's threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from sglang_qsa import metrics
from sglang_qsa.tiers.linker.loads import Load
from sglang_qsa.tiers.store.writer import Stored

_STORE = "linker"


def usable(value: bool) -> None:
    metrics.gauge("sglang_qsa_tier_usable", value, store=_STORE)


def lookup(result: Literal["hit", "miss", "closed"]) -> None:
    metrics.count("sglang_qsa_lookups_total", store=_STORE, result=result)


def loads(done: Sequence[Load], page_tokens: int, *, failed: bool) -> None:
    """Loads that were started together; what a failed one moved is not counted."""
    result = "failed" if failed else "ok"
    metrics.count("sglang_qsa_loads_total", len(done), store=_STORE, result=result)
    if not failed:
        tokens = sum(len(load.pages.keys) for load in done) * page_tokens
        metrics.count("sglang_qsa_loaded_tokens_total", tokens, store=_STORE)
        moved("load", sum(load.record_bytes for load in done))


def store(stored: Stored | None) -> None:
    """One offload, by what became of it; None for an error."""
    names = {Stored.WRITTEN: "ok", Stored.PRESENT: "present"}
    result = names.get(stored, "failed") if stored is not None else "failed"
    metrics.count("sglang_qsa_stores_total", store=_STORE, result=result)


def refused_store() -> None:
    metrics.count("sglang_qsa_stores_total", store=_STORE, result="closed")


def moved(direction: Literal["load", "offload"], amount_bytes: int) -> None:
    metrics.count(
        "sglang_qsa_transfer_bytes_total",
        amount_bytes,
        store=_STORE,
        direction=direction,
    )


@contextmanager
def timed(direction: Literal["load", "offload"]) -> Iterator[None]:
    """Count the seconds inside, whatever the end."""
    started = time.perf_counter()
    try:
        yield
    finally:
        metrics.count(
            "sglang_qsa_transfer_seconds_total",
            time.perf_counter() - started,
            store=_STORE,
            direction=direction,
        )
