"""Counters of a server's `/metrics`, and how much they grew.

SGLang's metrics are in Prometheus' multi-process mode: a counter that was never
incremented is not on the page. So an absent one is missing, which is not 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from sglang_qsa.metrics import METRICS, Metric

Unit = Literal["bytes", "tokens", "seconds", "events"]
Snapshot = Mapping[str, float]
"""Value of each counter, by name and, where `SHOWN` asks for it, label values."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A counter that the report shows."""

    name: str
    unit: Unit
    meaning: str
    split_by: tuple[str, ...] = ()
    """Labels whose values are shown apart; all others are summed up."""

    def label(self, key: str) -> str:
        """What the report calls the series `key` of this counter."""
        return self.meaning + key.removeprefix(self.name)


def _ours(metric: Metric) -> Shown:
    """A counter of the plugin: all its labels shown, its name in words."""
    words = metric.name.removeprefix("sglang_qsa_").removesuffix("_total").split("_")
    units: dict[str, Unit] = {u: u for u in ("bytes", "tokens", "seconds")}
    unit = units.get(words[-1], "events")
    if unit != "events":
        words.pop()
    return Shown(metric.name, unit, " ".join(words), metric.labels)


SHOWN = (
    Shown("sglang:evicted_tokens_total", "tokens", "evicted from the device"),
    Shown("sglang:hicache_backup_bytes_total", "bytes", "device to host"),
    Shown("sglang:load_back_bytes_total", "bytes", "host to device"),
    Shown("sglang:hicache_backup_tokens_total", "tokens", "device to host", ("pool",)),
    Shown("sglang:load_back_tokens_total", "tokens", "host to device", ("pool",)),
    Shown(
        "sglang:hicache_dropped_tokens_total",
        "tokens",
        "evicted without a copy in host memory",
        ("reason",),
    ),
    Shown("sglang:backuped_tokens_total", "tokens", "host to storage"),
    Shown("sglang:prefetched_tokens_total", "tokens", "storage to host"),
    Shown("sglang:num_retracted_requests_total", "events", "requests retracted"),
    *(_ours(metric) for metric in METRICS if metric.kind == "counter"),
)

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
"""Ranks of one replica: each counts the same tokens, and bytes of its own shard."""


def read(page: str) -> dict[str, float]:
    """The counters of `SHOWN` that are on a metrics page."""
    shown = {counter.name: counter for counter in SHOWN}
    by_rank: dict[str, dict[tuple[str, ...], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if (counter := shown.get(sample.name)) is None:
                continue
            values = [sample.labels.get(label, "") for label in counter.split_by]
            key = counter.name + (f" ({', '.join(values)})" if values else "")
            rank = tuple(sample.labels.get(label, "") for label in _RANKS)
            by_rank[key][rank] += sample.value
    return {
        key: sum(ranks.values())
        if _counter(key).unit == "bytes"
        else max(ranks.values())
        for key, ranks in by_rank.items()
    }


def growth(before: Snapshot, after: Snapshot) -> dict[str, float | None]:
    """What was counted between two snapshots, for each counter of `SHOWN`.

    None where the server does not report it, or where it fell: the server was
    restarted. A counter that appeared in between counts from 0.
    """
    grown: dict[str, float | None] = {}
    for counter in SHOWN:
        keys = sorted(key for key in after if _counter(key) is counter)
        for key in keys or [counter.name]:
            value = after[key] - before.get(key, 0) if key in after else None
            grown[key] = value if value is None or value >= 0 else None
    return grown


def _counter(key: str) -> Shown:
    name = key.split(" ")[0]
    return next(counter for counter in SHOWN if counter.name == name)


def describe(key: str) -> tuple[str, Unit]:
    """What a report calls the series `key`, and its unit."""
    counter = _counter(key)
    return counter.label(key), counter.unit
