"""What is registered with the daemon: every plane, whole, in layout order."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.arena import Arena
from sglang_qsa.errors import LayoutMismatch
from sglang_qsa.layout import Unit
from tests.messages import assert_refusal
from tests.pools import PAGE_TOKENS, Pools, build_pools, small_layout

pytestmark = pytest.mark.usefixtures("sglang_runtime")

GRID_TOKENS = 64


def adapter_of(pools: Pools, arena: Arena) -> Any:
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    from sglang_qsa.tiers.lmcache.adapter import QsaKVAdapter

    return QsaKVAdapter(
        arena=arena,
        token_to_kv_pool_allocator=pools.allocator,
        req_to_token_pool=pools.requests,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        mamba_component=SimpleNamespace(mamba_checkpoint_grid=GRID_TOKENS),
        page_size=PAGE_TOKENS,
        sliding_window_size=None,
    )


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
def test_groups_carry_every_plane_in_order(kv_dtype: str) -> None:
    pools = build_pools(kv_dtype=kv_dtype)
    arena = pools.open(small_layout(kv_cache_dtype=f"torch.{kv_dtype}"))
    pages, states = adapter_of(pools, arena).resolve_registered_groups()
    assert (pages.recurrent_state, states.recurrent_state) == (False, True)
    assert states.tokens_per_block == GRID_TOKENS
    for group, unit in ((pages, Unit.PAGE), (states, Unit.CHECKPOINT)):
        addresses = [tensor.data_ptr() for tensor in group.kv_tensors]
        planes = [tensor for plane in arena.of(unit) for tensor in plane.tensors]
        assert addresses == [tensor.data_ptr() for tensor in planes]
        assert [t.nbytes for t in group.kv_tensors] == [t.nbytes for t in planes]
        assert all(tensor.is_contiguous() for tensor in group.kv_tensors)


def test_bytes_per_block_are_the_record_s() -> None:
    pools = build_pools()
    arena = pools.open()
    pages, states = adapter_of(pools, arena).resolve_registered_groups()
    for group, wanted in (
        (pages, arena.layout.page_bytes),
        (states, arena.layout.checkpoint_bytes),
    ):
        rows = group.tensor_rows_per_block
        blocks = [t[:n].nbytes for t, n in zip(group.kv_tensors, rows, strict=True)]
        assert sum(blocks) == wanted


def test_fp8_is_registered_as_bytes() -> None:
    """The daemon's torch path stores FP8 and fails to load it (lmcache 0.5.6)."""
    pools = build_pools(kv_dtype="float8_e4m3fn")
    arena = pools.open(small_layout(kv_cache_dtype="fp8_e4m3"))
    pages, _ = adapter_of(pools, arena).resolve_registered_groups()
    assert {tensor.dtype for tensor in pages.kv_tensors} == {torch.uint8}


@pytest.mark.parametrize("lost", ["index", "ple_conv", "ple_ngram", "ssm"])
def test_lost_plane_is_refused(lost: str) -> None:
    """Bytes registered are compared with the declared record, not with the arena."""
    pools = build_pools()
    arena = pools.open()
    planes = {name: plane for name, plane in arena.planes.items() if name != lost}
    incomplete = dataclasses.replace(arena, planes=planes)
    with pytest.raises(LayoutMismatch) as caught:
        adapter_of(pools, incomplete).resolve_registered_groups()
    assert_refusal(caught.value, origin="LMCache registration", found=" B registered")
