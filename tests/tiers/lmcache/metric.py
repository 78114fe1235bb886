"""Counters as a scrape would read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def value(name: str, **labels: str) -> float:
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value(name, {"store": "lmcache", **labels}) or 0.0


@contextmanager
def counted(name: str, **labels: str) -> Iterator[None]:
    """What happens inside adds one to this counter."""
    before = value(name, **labels)
    yield
    assert value(name, **labels) == before + 1
