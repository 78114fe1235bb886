"""What HiCache assembles: records within the budget, or upstream's own pools."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.host_server import PAGE_TOKENS, Server, prompt
from sglang_qsa.budget import split_budget
from sglang_qsa.errors import ConfigError, LayoutMismatch
from sglang_qsa.layout import build_layout
from sglang_qsa.tiers.host import strategy
from sglang_qsa.tiers.host.strips import strips_of
from tests.messages import assert_refusal
from tests.pools import build_pools, small_layout
from tests.tiers.host.server import serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")

SIZE_GB = 0.05


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
def test_a_size_is_divided_by_records(draft: bool) -> None:
    layout = small_layout(draft=draft)
    budget = split_budget(layout, int(SIZE_GB * 10**9), 10 * PAGE_TOKENS)
    with serving(size_gb=SIZE_GB, draft=draft) as server:
        pages, states = server.host("kv"), server.host("mamba")
        assert (pages.page_num, states.page_num) == (budget.pages, budget.checkpoints)
        held = pages.kv_buffer.nbytes + states.kv_buffer.nbytes
        assert held == budget.used_bytes <= SIZE_GB * 10**9


def test_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated."""
    monkeypatch.setattr(strategy, "host_memory_budget_bytes", lambda: 10**6)
    monkeypatch.setattr(strategy, "RecordPool", None)
    with pytest.raises(ConfigError) as caught, serving(size_gb=SIZE_GB):
        pass
    assert_refusal(caught.value, origin="--hicache-size", found="pages")


def test_other_backends_keep_upstream_s_pools() -> None:
    """The strategy is there, and no layout of this plugin's tree cache."""
    strategy.install()
    strategy.install()
    server = Server()
    server.open(build_pools(pages=server.pages, slots=server.slots))
    assert type(server.host("mamba")).__name__ == "MambaPoolHost"
    server.prefill(prompt(1), seed=1)
    server.back_up()


def test_a_plane_that_a_copy_cannot_move() -> None:
    pools = build_pools(ngram_tokens=3)
    geometry = dataclasses.replace(small_layout().geometry, ngram_tokens=3)
    layout = build_layout(geometry)
    arena = pools.open(layout)
    assert strips_of(arena, layout.page)
    with pytest.raises(LayoutMismatch) as caught:
        strips_of(arena, layout.checkpoint)
    assert_refusal(caught.value, origin="checkpoint record", found="24 B")


def test_loads_bring_what_is_read_first_first() -> None:
    layout = small_layout()
    arena = build_pools().open(layout)
    for record in (layout.page, layout.checkpoint):
        order = [strip.needed_by for strip in strips_of(arena, record)]
        assert order == sorted(order)
        covered = torch.zeros(record.record_bytes, dtype=torch.bool)
        for strip in strips_of(arena, record):
            assert not covered[strip.offset : strip.end].any()
            covered[strip.offset : strip.end] = True
        assert covered.all()
