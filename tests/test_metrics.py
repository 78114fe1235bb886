"""The table of metrics, and that any thread may be the first to count."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from sglang_qsa.metrics import METRICS, Metric

LABELS = {"store", "result", "direction", "verdict", "unit"}

THREADS = """
import sys, threading
sys.setswitchinterval(1e-6)
from sglang_qsa.metrics import METRICS, count, gauge

def use(barrier):
    barrier.wait()
    for metric in METRICS:
        labels = dict.fromkeys(metric.labels, "a")
        (count if metric.kind == "counter" else gauge)(metric.name, 1, **labels)

barrier = threading.Barrier(8)
failed = []
threading.excepthook = failed.append
threads = [threading.Thread(target=use, args=(barrier,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
from prometheus_client import REGISTRY
value = REGISTRY.get_sample_value
counters = [m for m in METRICS if m.kind == "counter"]
sums = {value(m.name, dict.fromkeys(m.labels, "a")) for m in counters}
sys.exit(str(failed or sums) if failed or sums != {8.0} else 0)
"""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_and_labels(metric: Metric) -> None:
    """prometheus_client appends `_total` to a counter that lacks it."""
    assert metric.name.startswith("sglang_qsa_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert set(metric.labels) <= LABELS
    assert metric.help.endswith(".")


def test_names_are_unique() -> None:
    assert max(Counter(metric.name for metric in METRICS).values()) == 1


def test_threads_may_count_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
