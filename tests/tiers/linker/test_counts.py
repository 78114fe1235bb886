"""What the linker counts, as a scrape would read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_qsa.hooks import active
from tests.pools import PAGE_TOKENS, small_layout
from tests.tiers.linker.test_linker import KEYS, SOURCE, TARGET, Server

pytestmark = pytest.mark.usefixtures("sglang_runtime")
Grown = Callable[..., float]


@pytest.fixture(autouse=True)
def layout() -> Iterator[None]:
    active.identify(small_layout())
    yield
    active.identify(None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server.start(tmp_path)
    server.fill(SOURCE, 3)
    yield server
    server.linker.close()


@pytest.fixture
def grown() -> Grown:
    """The growth of a counter since the last question."""
    from prometheus_client import REGISTRY

    last: dict[str, float] = {}

    def ask(noun: str, **labels: str) -> float:
        name, labels = f"sglang_qsa_{noun}_total", {"store": "linker", **labels}
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        key = f"{name} {sorted(labels.items())}"
        before, last[key] = last.get(key, 0.0), now
        return now - before

    return ask


def _bytes(pages: int) -> int:
    layout = small_layout()
    return pages * layout.page.record_bytes + layout.checkpoint.record_bytes


def test_offload(server: Server, grown: Grown) -> None:
    """The second time nothing is copied: it is there."""
    series = [
        ("stores", {"result": "ok"}),
        ("stores", {"result": "present"}),
        ("transfer_bytes", {"direction": "offload"}),
        ("transfer_seconds", {"direction": "offload"}),
    ]
    for noun, labels in series:
        grown(noun, **labels)
    assert server.store(KEYS, SOURCE, 3)
    server.linker.reset()
    ok, present, moved, seconds = (grown(noun, **labels) for noun, labels in series)
    assert (ok, present, moved) == (1, 0, _bytes(5))
    assert 0 < seconds < 10
    assert server.store(KEYS, SOURCE, 3)
    server.linker.reset()
    ok, present, moved, _ = (grown(noun, **labels) for noun, labels in series)
    assert (ok, present, moved) == (0, 1, 0)


def test_load(server: Server, grown: Grown) -> None:
    """The tail of a prompt, whose first two pages are on the device."""
    assert server.store(KEYS, SOURCE, 3)
    series = [
        ("loads", {"result": "ok"}),
        ("loaded_tokens", {}),
        ("transfer_bytes", {"direction": "load"}),
        ("transfer_seconds", {"direction": "load"}),
    ]
    for noun, labels in series:
        grown(noun, **labels)
    assert server.load(KEYS[2:], TARGET[2:], 6)
    server.linker.reset()
    ok, tokens, moved, seconds = (grown(noun, **labels) for noun, labels in series)
    assert (ok, tokens, moved) == (1, 3 * PAGE_TOKENS, _bytes(3))
    assert 0 < seconds < 10


def test_failed_load(server: Server, tmp_path: Path, grown: Grown) -> None:
    assert server.store(KEYS, SOURCE, 3)
    for file in tmp_path.glob("*/pages/*"):
        file.write_bytes(b"\0" * file.stat().st_size)
    grown("loads", result="failed"), grown("loaded_tokens")
    assert not server.load(KEYS, TARGET, 6)
    server.linker.reset()
    assert grown("loads", result="failed") == 1
    assert grown("loaded_tokens") == 0


def test_look_ups_and_a_tier_that_is_closed(server: Server, grown: Grown) -> None:
    results = ("miss", "hit", "closed")
    for result in results:
        grown("lookups", result=result)
    grown("stores", result="closed")
    assert not server.found(KEYS)
    assert server.store(KEYS, SOURCE, 3)
    assert server.found(KEYS)
    assert _usable() == 1
    server.linker.retire()
    assert not server.found(KEYS)
    assert not server.linker.offload([])
    assert [grown("lookups", result=result) for result in results] == [1, 1, 1]
    assert grown("stores", result="closed") == 1
    assert _usable() == 0


def _usable() -> float | None:
    from prometheus_client import REGISTRY

    name = "sglang_qsa_tier_usable"
    return REGISTRY.get_sample_value(name, {"store": "linker"})
