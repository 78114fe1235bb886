"""`--hicache-size` on real host pools: what is allocated is what the budget says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sglang_qsa.budget import split_budget
from sglang_qsa.hooks import active
from tests.hosts import host_pools
from tests.pools import PAGE_TOKENS, small_layout

SIZE_GB = 1


@pytest.fixture
def layout() -> Iterator[Any]:
    layout = small_layout()
    active.identify(layout)
    yield layout
    active.identify(None)


@pytest.mark.usefixtures("applied")
def test_allocated_records(layout: Any) -> None:
    budget = split_budget(layout, SIZE_GB * 10**9)
    pools = host_pools(SIZE_GB)
    assert pools["kv"].size // PAGE_TOKENS == budget.pages
    assert pools["mamba"].size == budget.checkpoints
    allocated = sum(pool.size * pool.size_per_token for pool in pools.values())
    assert allocated <= SIZE_GB * 10**9


@pytest.mark.usefixtures("applied")
def test_upstream_s_rule_without_a_layout() -> None:
    layout = small_layout()
    budget = split_budget(layout, SIZE_GB * 10**9)
    assert host_pools(SIZE_GB)["mamba"].size != budget.checkpoints
