"""Live pools are opened as the layout declares them, or the launch is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_qsa import arena as arena_module
from sglang_qsa.arena import Arena
from sglang_qsa.errors import LayoutMismatch
from sglang_qsa.layout import Layout, Unit, build_layout
from tests.messages import assert_refusal
from tests.pools import (
    GDN_LAYERS,
    PAGE_TOKENS,
    QSA_LAYERS,
    RATIO,
    Pools,
    build_pools,
    small_layout,
)

PAGES, SLOTS = 16, 8

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture
def pools() -> Pools:
    return build_pools(pages=PAGES, slots=SLOTS)


def refused(pools: Pools, layout: Layout | None = None, **parts: str) -> None:
    with pytest.raises(LayoutMismatch) as caught:
        pools.open(layout)
    assert_refusal(caught.value, **parts)


def with_geometry(**changes: Any) -> Layout:
    """The pools' layout, except for these fields of its geometry."""
    return build_layout(dataclasses.replace(small_layout().geometry, **changes))


# -- good pools ------------------------------------------------------------------


def test_every_plane_is_named(pools: Pools) -> None:
    arena = pools.open()
    assert list(arena.planes) == [
        "k",
        "v",
        "index",
        "ssm",
        "conv",
        "ple_conv",
        "ple_ngram",
    ]
    assert arena.pages == PAGES + 1  # the padding page
    assert arena.slots == SLOTS + 1  # the padding slot
    assert [p.plane.name for p in arena.of(Unit.PAGE)] == ["k", "v", "index"]
    assert len(arena.of(Unit.CHECKPOINT)) == 4


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_records_are_the_pool_s_own_memory(kv_dtype: str) -> None:
    """A byte written through the pool is read at its place in the record."""
    pools = build_pools(kv_dtype=kv_dtype)
    arena = pools.open(small_layout(kv_cache_dtype=f"torch.{kv_dtype}"))
    page, slot = 3, 5
    first = page * PAGE_TOKENS
    owners: dict[str, list[torch.Tensor]] = {
        "k": [b[first : first + PAGE_TOKENS] for b in pools.kv.full_kv_pool.k_buffer],
        "v": [b[first : first + PAGE_TOKENS] for b in pools.kv.full_kv_pool.v_buffer],
        "index": [
            b[first // RATIO : (first + PAGE_TOKENS) // RATIO]
            for b in pools.kv.qsa_compressed_k_buffer_pool
        ],
        "ssm": list(pools.requests.mamba_pool.mamba_cache.temporal[:, slot]),
        "conv": list(pools.requests.mamba_pool.mamba_cache.conv[0][:, slot]),
        "ple_conv": list(pools.requests.short_conv_pool.conv_state[:, slot]),
        "ple_ngram": [pools.requests.ngram_pool.context[slot]],
    }
    assert owners.keys() == arena.planes.keys()
    for number, (name, layers) in enumerate(owners.items(), 1):
        record = page if arena.planes[name].plane.unit is Unit.PAGE else slot
        for layer, (owned, rows) in enumerate(
            zip(layers, arena.planes[name].record_rows(), strict=True)
        ):
            value = 10 * number + layer
            owned.view(torch.uint8).fill_(value)
            assert owned.nbytes == arena.planes[name].plane.layer_bytes
            assert rows[record].eq(value).all()
            assert not rows[record - 1].eq(value).any()
            assert not rows[record + 1].eq(value).any()


def test_model_without_ple() -> None:
    pools = build_pools(ple=False)
    arena = pools.open(with_geometry(ple_layers=(), ngram_tokens=0))
    assert list(arena.planes) == ["k", "v", "index", "ssm", "conv"]


# -- one fault at a time ---------------------------------------------------------


def test_missing_ple_windows() -> None:
    refused(build_pools(ple=False), origin="slot states", found="[]")


@pytest.mark.parametrize("kept", [0, 1], ids=["ShortConvPool", "NGramPool"])
def test_one_missing_slot_state(pools: Pools, kept: int) -> None:
    siblings = pools.requests.mamba_pool._slot_siblings
    pools.requests.mamba_pool._slot_siblings = [siblings[kept]]
    refused(pools, found=f"['{type(siblings[kept]).__name__}']")


def test_unknown_slot_state(pools: Pools) -> None:
    """A later SGLang may carry more per slot than this layout stores."""

    class FutureState:
        pass

    pools.requests.mamba_pool.register_slot_state(FutureState())
    refused(pools, found="['FutureState'] unknown")


def test_windows_that_the_layout_does_not_declare(pools: Pools) -> None:
    refused(pools, with_geometry(ple_layers=(), ngram_tokens=0), origin="slot states")


def test_layout_with_scales_on_a_pool_without(pools: Pools) -> None:
    """Case 4: dequantised with another scale, the answers are wrong and fluent."""
    refused(
        build_pools(kv_dtype="float8_e4m3fn"),
        small_layout(kv_cache_dtype="fp8_e4m3", kv_scales=True),
        found="missing ['index_scale', 'k_scale', 'v_scale']",
    )


@pytest.mark.parametrize("prefix", ["", "native_"])
def test_pool_with_scales_that_the_layout_does_not_declare(
    pools: Pools, prefix: str
) -> None:
    full = pools.kv.full_kv_pool
    scales = [torch.ones(b.shape[:2]) for b in full.k_buffer]
    setattr(full, f"{prefix}k_scale_buffer", scales)
    setattr(full, f"{prefix}v_scale_buffer", scales)
    refused(pools, found=f"missing [], extra ['{prefix}k_scale', '{prefix}v_scale']")


@pytest.mark.parametrize(
    ("facts", "plane"),
    [
        ({"kv_cache_dtype": "float16"}, "plane k,"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "plane k,"),
        ({"qsa_indexer_dtype": "fp8_e4m3"}, "plane index,"),
        ({"mamba_ssm_dtype": "bfloat16"}, "plane ssm,"),
        ({"mamba_conv_dtype": "float16"}, "plane conv,"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_dtype(pools: Pools, facts: dict[str, str], plane: str) -> None:
    refused(pools, small_layout(**facts), origin=plane)


def test_another_fp8() -> None:
    """Both live in a `uint8` buffer; the pool knows which of them it holds."""
    refused(
        build_pools(kv_dtype="float8_e4m3fn"),
        small_layout(kv_cache_dtype="fp8_e5m2"),
        origin="plane k,",
        found="float8_e4m3",
    )


@pytest.mark.parametrize(
    ("field", "layers"),
    [("kv_layers", QSA_LAYERS), ("gdn_layers", GDN_LAYERS)],
)
@pytest.mark.parametrize("change", ["order", "ids", "fewer", "more"])
def test_other_layers(pools: Pools, field: str, layers: list[int], change: str) -> None:
    other = {
        "order": layers[::-1],
        "ids": [layer + 6 for layer in layers],
        "fewer": layers[1:],
        "more": [*layers, 7],
    }[change]
    refused(pools, with_geometry(**{field: tuple(other)}), found=str(layers))


def test_other_ple_layer(pools: Pools) -> None:
    refused(pools, with_geometry(ple_layers=(3,)), origin="PLE layers", found="[1]")


@pytest.mark.parametrize(
    "changes",
    [
        {"ssm_order": ("value_head", "key_dim", "value_dim")},
        {"gdn_conv_channels": 3, "gdn_conv_window": 96},
        {"kv_heads": 1, "head_dim": 512},
        {"ple_window": 10},
        {"ngram_tokens": 3},
        {"page_tokens": 32},
        {"compress_ratio": 8},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_shape(pools: Pools, changes: dict[str, Any]) -> None:
    refused(pools, with_geometry(**changes))


def test_another_kv_pool(pools: Pools) -> None:
    other = dataclasses.replace(pools, kv=pools.kv.full_kv_pool)
    refused(other, origin="KV pool", found="MHATokenToKVPool")


def test_second_conv_state(pools: Pools) -> None:
    pool = pools.requests.mamba_pool
    conv = pool.mamba_cache.conv * 2
    pool.mamba_cache = dataclasses.replace(pool.mamba_cache, conv=conv)
    refused(pools, origin="GDN conv state", found="2 tensors")


def test_draft_rows_are_planes_of_the_page() -> None:
    pools = build_pools(pages=PAGES, slots=SLOTS, draft=True)
    arena = pools.open()
    drafts = [name for name in arena.planes if name.startswith("draft_")]
    assert drafts == ["draft_k", "draft_v", "draft_index"]
    held = pools.records()
    for name in drafts:
        (rows,) = arena.planes[name].record_rows()
        assert rows.data_ptr() == held[name][0].data_ptr()
        assert rows.shape == held[name][0].shape


def test_draft_rows_that_the_layout_does_not_declare() -> None:
    pools = build_pools(pages=PAGES, slots=SLOTS, draft=True)
    refused(pools, small_layout(), found="draft_k")


def test_draft_pool_of_other_pages() -> None:
    pools = build_pools(pages=PAGES, slots=SLOTS, draft=True)
    other = build_pools(pages=PAGES + 1, slots=SLOTS, draft=True)
    refused(dataclasses.replace(pools, drafts=other.drafts), origin="page records")


def test_draft_rows_that_no_pool_holds(pools: Pools) -> None:
    refused(pools, small_layout(draft=True), found="missing ['draft_index', 'draft_k'")


# -- addresses -------------------------------------------------------------------


def shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[: -PAGE_TOKENS // RATIO]


def every_other_row(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor).repeat_interleave(2, 0)[::2]


def heads_behind_dims(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape over a memory whose axes have another order."""
    moved = torch.zeros_like(tensor).movedim(0, -1).contiguous()
    return moved.movedim(-1, 0)


def half_a_page_more(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor).repeat(2, 1, 1)[: len(tensor) + 8]


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    freed = torch.zeros_like(tensor)
    freed.untyped_storage().resize_(0)
    return freed


Wrong = Callable[[torch.Tensor], torch.Tensor]
BAD_VIEWS: list[Wrong] = [
    shorter,
    every_other_row,
    heads_behind_dims,
    half_a_page_more,
    without_memory,
]


@pytest.mark.parametrize("layer", range(len(QSA_LAYERS)))
@pytest.mark.parametrize("wrong", BAD_VIEWS)
def test_index_rows_at_wrong_addresses(pools: Pools, wrong: Wrong, layer: int) -> None:
    buffers = pools.kv.qsa_compressed_k_buffer_pool
    buffers[layer] = wrong(buffers[layer])
    refused(pools)


def test_all_index_buffers_too_short(pools: Pools) -> None:
    buffers = pools.kv.qsa_compressed_k_buffer_pool
    buffers[:] = [shorter(buffer) for buffer in buffers]
    refused(pools, origin="page records", found=f"'index': {{{PAGES}}}")


def test_two_layers_in_one_place(pools: Pools) -> None:
    """A view with a wrong offset has the right shape, dtype and strides."""
    buffers = pools.kv.qsa_compressed_k_buffer_pool
    buffers[1] = buffers[0]
    refused(pools, origin="plane index, layer 1")


def test_layers_that_overlap_by_one_page(pools: Pools) -> None:
    flat = pools.kv.qsa_compressed_flat.view(-1)
    buffers = pools.kv.qsa_compressed_k_buffer_pool
    start = buffers[0].numel() - buffers[0][: PAGE_TOKENS // RATIO].numel()
    buffers[1] = flat[start : start + buffers[0].numel()].view(buffers[0].shape)
    refused(pools, origin="plane index, layer 1")


def test_layers_in_another_order(pools: Pools) -> None:
    """Every view is sound by itself; only the list is wrong."""
    pools.kv.qsa_compressed_k_buffer_pool.reverse()
    refused(pools, origin="plane index", found="layers at bytes")


def test_values_in_the_place_of_keys(pools: Pools) -> None:
    full = pools.kv.full_kv_pool
    full.v_buffer = list(full.k_buffer)
    refused(pools, origin="plane v, layer", found="shared with plane k")


@pytest.mark.parametrize(
    "axes", [(0, 1), (-1, -2)], ids=["layer and slot", "key and value"]
)
def test_states_in_another_memory_order(pools: Pools, axes: tuple[int, int]) -> None:
    """The right shape over bytes of another order; with equal sizes nobody sees it."""
    pool = pools.requests.mamba_pool
    temporal = pool.mamba_cache.temporal
    moved = temporal.transpose(*axes).contiguous().transpose(*axes)
    assert moved.shape == temporal.shape
    pool.mamba_cache = dataclasses.replace(pool.mamba_cache, temporal=moved)
    refused(pools, origin="plane ssm, layer 0", found="stride")


@pytest.mark.parametrize("wrong", [every_other_row, heads_behind_dims])
def test_shapes_alone_do_not_show_it(
    pools: Pools, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address check is what refuses these views; nothing else would."""
    buffers = pools.kv.qsa_compressed_k_buffer_pool
    buffers[0] = wrong(buffers[0])
    monkeypatch.setattr(arena_module, "_check_addresses", lambda *_: None)
    assert isinstance(pools.open(), Arena)
