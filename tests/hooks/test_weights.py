"""A weight update closes the tier, whatever else it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa.hooks import active
from tests.pools import small_layout


def update_weights(tree_cache: object, *, flush_cache: bool) -> tuple[bool, str]:
    """The last step of every kind of weight update, as upstream takes it."""
    from sglang.srt.managers.scheduler_components.weight_updater import (
        SchedulerWeightUpdaterManager,
    )

    manager: Any = SimpleNamespace(
        scheduler=SimpleNamespace(tree_cache=tree_cache),
        flush_cache=lambda *, empty_cache: True,
    )
    request = SimpleNamespace(flush_cache=flush_cache, torch_empty_cache=False)
    success, message = SchedulerWeightUpdaterManager.flush_cache_after_weight_update(
        manager, request, True, "updated"
    )
    return bool(success), str(message)


@pytest.mark.parametrize("flush_cache", [True, False])
def test_tier_is_retired(applied: Any, flush_cache: bool) -> None:
    """Also without a flush: what the tier holds is of the old weights all the same."""
    reasons: list[str] = []
    cache = SimpleNamespace(retire_tier=reasons.append)
    assert update_weights(cache, flush_cache=flush_cache) == (True, "updated")
    assert len(reasons) == 1
    assert "restart the server" in reasons[0]


@pytest.mark.parametrize("stored", [True, False])
def test_storage_of_the_backend_is_detached(applied: Any, stored: bool) -> None:
    """HiCache's keys hold the fingerprint of the old weights too."""
    calls: list[str] = []

    def detach() -> tuple[bool, str]:
        calls.append("detach")
        return True, "detached"

    cache = SimpleNamespace(enable_storage=stored, detach_storage_backend=detach)
    active.identify(small_layout())
    try:
        assert update_weights(cache, flush_cache=True) == (True, "updated")
    finally:
        active.identify(None)
    assert calls == ["detach"] * stored


def test_caches_of_upstream_have_no_tier_of_ours(applied: Any) -> None:
    assert update_weights(object(), flush_cache=True) == (True, "updated")
