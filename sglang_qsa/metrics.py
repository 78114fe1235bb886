"""Counters and gauges, declared once and exported on the server's own `/metrics`.

SGLang runs prometheus_client in multi-process mode, so a metric created in the
scheduler appears there without further wiring. `prometheus_client` reads its
directory when it is first imported: create metrics only inside a tier.

Ranks of one replica add to the same counter and carry no rank label: a server of TP
size 2 counts each load twice, and the bytes of both shards.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported series; names follow `sglang_qsa_<noun>_<unit>[_total]`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]


METRICS = (
    Metric(
        "sglang_qsa_checkpoints_total",
        "counter",
        "States handed to the prefix tree by result (published, or refused because "
        "they were not taken at the boundary of their key).",
        ("result",),
    ),
    Metric(
        "sglang_qsa_admissions_total",
        "counter",
        "Checkpoints offered to an external tier by verdict (long, seen_again, fork: "
        "kept; short: not kept).",
        ("store", "verdict"),
    ),
    Metric(
        "sglang_qsa_lookups_total",
        "counter",
        "Look-ups in an external tier by result (hit, miss, timeout, closed).",
        ("store", "result"),
    ),
    Metric(
        "sglang_qsa_loads_total",
        "counter",
        "Loads from an external tier by result (ok, rejected, timeout; failed: a "
        "record was not what the look-up promised).",
        ("store", "result"),
    ),
    Metric(
        "sglang_qsa_stores_total",
        "counter",
        "Stores to an external tier by result (ok, present, failed, closed).",
        ("store", "result"),
    ),
    Metric(
        "sglang_qsa_loaded_tokens_total",
        "counter",
        "Tokens whose state was loaded from an external tier.",
        ("store",),
    ),
    Metric(
        "sglang_qsa_transfer_bytes_total",
        "counter",
        "Bytes of records between the device and an external tier by direction (load, "
        "offload).",
        ("store", "direction"),
    ),
    Metric(
        "sglang_qsa_transfer_seconds_total",
        "counter",
        "Seconds of loads and offloads by direction, the wait for the device included "
        "(linker: of its thread; LMCache: from hand-over to the daemon's answer).",
        ("store", "direction"),
    ),
    Metric(
        "sglang_qsa_stall_seconds_total",
        "counter",
        "Seconds for which the scheduler waited for an external tier to accept a load.",
        ("store",),
    ),
    Metric(
        "sglang_qsa_quarantined_loads",
        "gauge",
        "Loads whose device slots are held back because a late write is possible.",
        ("store",),
    ),
    Metric(
        "sglang_qsa_tier_usable",
        "gauge",
        "1 while the external tier is used, 0 while its circuit breaker is open.",
        ("store",),
    ),
    Metric(
        "sglang_qsa_store_records_total",
        "counter",
        "Records of the durable store by unit (page, checkpoint, commit, intent) and "
        "result (written, hit; absent, unreadable, length, header, foreign, key, "
        "checksum: a miss).",
        ("unit", "result"),
    ),
    Metric(
        "sglang_qsa_store_quarantined_total",
        "counter",
        "Records set aside because they failed verification, by unit and cause.",
        ("unit", "result"),
    ),
    Metric(
        "sglang_qsa_store_puts_total",
        "counter",
        "Checkpoints offered to the durable store by result (written, present; "
        "incomplete, no_room, failed: not kept).",
        ("result",),
    ),
    Metric(
        "sglang_qsa_store_lookups_total",
        "counter",
        "Look-ups of a prefix in the durable store by result (hit; shortened: a longer "
        "boundary lacked a part; absent, incomplete, unreadable: a miss).",
        ("result",),
    ),
    Metric(
        "sglang_qsa_store_bytes_total",
        "counter",
        "Bytes of records of the durable store by direction (written, read, evicted).",
        ("direction",),
    ),
)
_BY_NAME = {metric.name: metric for metric in METRICS}
_CREATING = threading.Lock()
"""`cache` lets two threads in at once; prometheus_client refuses the second metric."""


def count(name: str, amount: float = 1, **labels: str) -> None:
    """Add to a counter of `METRICS`, from any thread."""
    with _CREATING:
        counter = _counter(name)
    counter.labels(**labels).inc(amount)


def gauge(name: str, value: float, **labels: str) -> None:
    """Set a gauge of `METRICS`, from any thread."""
    with _CREATING:
        metric = _gauge(name)
    metric.labels(**labels).set(value)


@cache
def _counter(name: str) -> Counter:
    from prometheus_client import Counter

    metric = _BY_NAME[name]
    return Counter(metric.name, metric.help, metric.labels)


@cache
def _gauge(name: str) -> Gauge:
    from prometheus_client import Gauge

    metric = _BY_NAME[name]
    return Gauge(metric.name, metric.help, metric.labels, multiprocess_mode="max")
