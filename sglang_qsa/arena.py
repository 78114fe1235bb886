"""Live SGLang pools -> named plane tensors, checked against the layout.

This is the only module that reads attributes of SGLang's pools. Everything else
sees `Arena`: planes by name, as the layout declares them. The check does not trust
the views it hands out: it recomputes the address of records from the declared
bytes and compares it with where the pool's own storage puts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from sglang_qsa.errors import LayoutMismatch, refusal
from sglang_qsa.layout import Layout, Plane, Unit

_SCALES = ("k_scale", "v_scale", "native_k_scale", "native_v_scale")
"""Where an MHA pool keeps scales beside K and V; unset in an unquantised pool."""
_KNOWN_SIBLINGS = frozenset({"ShortConvPool", "NGramPool"})
_WAY_OUT = "serve with the pinned sglang version, or report this configuration"


@dataclass(frozen=True, slots=True)
class ArenaPlane:
    """One plane where it lives on the device.

    `tensors` holds one tensor per layer, first axis = rows. A record (page or slot)
    is `rows_per_record` consecutive rows; row 0 starts the padding record, which
    no request owns.
    """

    plane: Plane
    tensors: tuple[torch.Tensor, ...]
    rows_per_record: int

    @property
    def records(self) -> int:
        return self.tensors[0].shape[0] // self.rows_per_record

    def record_rows(self) -> tuple[torch.Tensor, ...]:
        """Per layer a `[records, layer_bytes]` uint8 view of the same storage."""
        return tuple(
            tensor.view(torch.uint8).reshape(self.records, self.plane.layer_bytes)
            for tensor in self.tensors
        )


@dataclass(frozen=True, slots=True)
class Arena:
    """All planes of one rank, by name, in layout order."""

    layout: Layout
    planes: Mapping[str, ArenaPlane]

    @property
    def pages(self) -> int:
        """Page records, the padding page included."""
        return self.planes["k"].records

    @property
    def slots(self) -> int:
        """State slots, the padding slot included."""
        return self.planes["ssm"].records

    def of(self, unit: Unit) -> tuple[ArenaPlane, ...]:
        """The planes of one record kind, in byte order."""
        return tuple(p for p in self.planes.values() if p.plane.unit is unit)


def open_arena(
    *,
    kv_pool: Any,
    req_to_token_pool: Any,
    layout: Layout,
    draft_pools: Sequence[Any] = (),
) -> Arena:
    """Name the planes of the live pools and prove that they are what `layout` says.

    Args:
        kv_pool: `QSATokenToKVPool` of the target model.
        req_to_token_pool: `HybridReqToTokenPool` that owns the state slots.
        layout: what every tier will store.
        draft_pools: `QSATokenToKVPool` of each MTP layer, whose pages are the target's.

    Raises:
        LayoutMismatch: a plane is missing, extra, or of another size, dtype, layer
            set or address than declared.
    """
    for pool in (kv_pool, *draft_pools):
        if type(pool).__name__ != "QSATokenToKVPool":
            raise _mismatch("KV pool", type(pool).__name__, "QSATokenToKVPool")
        _check_page(pool, layout)
    _check_siblings(req_to_token_pool.mamba_pool, layout)
    _check_layer_ids(kv_pool, req_to_token_pool, layout)
    found = dict(_page_tensors(kv_pool)) | _draft_tensors(draft_pools)
    found |= dict(_checkpoint_tensors(req_to_token_pool))
    _check_names(found, layout)
    arena = Arena(
        layout,
        {
            plane.name: ArenaPlane(
                plane, found[plane.name], _rows_per_record(plane, layout)
            )
            for plane in layout.planes
        },
    )
    for plane in arena.planes.values():
        _check_plane(plane)
    _check_record_counts(arena)
    _check_disjoint(arena)
    _check_layer_order(arena)
    return arena


def ring_buffers(kv_pool: Any) -> list[torch.Tensor]:
    """Raw index keys of open groups, layer by layer, then their RoPE positions.

    Args:
        kv_pool: `QSATokenToKVPool`; each buffer has the rows of all requests' rings.
    """
    return [*kv_pool.qsa_key_state_buffer_pool, kv_pool.qsa_rope_position_buffer]


def request_rows(
    kv_pool: Any, token_slots: torch.Tensor, request_slot: int | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every QSA buffer beside K and V, with the rows that belong to one request.

    Args:
        kv_pool: `QSATokenToKVPool`.
        token_slots: `[tokens]` int64, the request's token slots in order.
        request_slot: its request slot, whose ring holds the raw keys of its open
            group; None leaves the rings out.
    """
    ratio = kv_pool.qsa_compress_ratio
    # Groups do not straddle pages, so the first token of one names its key's row.
    groups = token_slots[::ratio].long() // ratio
    rows = [(buffer, groups) for buffer in kv_pool.qsa_compressed_k_buffer_pool]
    if request_slot is not None:
        rings = ring_buffers(kv_pool)
        # A group, or with MTP several (`hooks.ring`): the pool itself tells.
        size = len(rings[0]) // kv_pool.qsa_num_request_slots
        ring = torch.arange(size, device=token_slots.device) + request_slot * size
        rows += [(buffer, ring) for buffer in rings]
    return rows


def group_rows(
    kv_pool: Any, target_slots: torch.Tensor, source_slots: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Every index key buffer, with target and source rows of the groups that move.

    A group moves when its first token does, from and to the start of a group; the key
    of a group that is torn apart is computed anew when it closes.
    """
    ratio = kv_pool.qsa_compress_ratio
    first = (target_slots % ratio == 0) & (source_slots % ratio == 0)
    target = target_slots[first].long() // ratio
    source = source_slots[first].long() // ratio
    return [(buffer, target, source) for buffer in kv_pool.qsa_compressed_k_buffer_pool]


def _page_tensors(kv_pool: Any) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    full = kv_pool.full_kv_pool
    yield "k", _typed(full.k_buffer, full.dtype)
    yield "v", _typed(full.v_buffer, full.dtype)
    yield "index", tuple(kv_pool.qsa_compressed_k_buffer_pool)
    for name in _SCALES:
        scales = getattr(full, f"{name}_buffer", None)
        if scales is not None:
            yield name, tuple(scales)


def _draft_tensors(pools: Sequence[Any]) -> dict[str, tuple[torch.Tensor, ...]]:
    """The planes of all draft pools; each is a layer or more of one plane."""
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    for pool in pools:
        for name, tensors in _page_tensors(pool):
            found[f"draft_{name}"] = found.get(f"draft_{name}", ()) + tensors
    return found


def _checkpoint_tensors(
    pool: Any,
) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    state = pool.mamba_pool.mamba_cache
    yield "ssm", tuple(state.temporal)
    if len(state.conv) != 1:
        raise _mismatch("GDN conv state", f"{len(state.conv)} tensors", "1 tensor")
    yield "conv", tuple(state.conv[0])
    if pool.short_conv_pool.enabled:
        yield "ple_conv", tuple(pool.short_conv_pool.conv_state)
    if pool.ngram_pool.enabled:
        yield "ple_ngram", (pool.ngram_pool.context,)


def _typed(buffers: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """FP8 pools store `uint8` and view it; give the tensors the pool's own type."""
    return tuple(
        buffer.view(dtype) if buffer.dtype is torch.uint8 else buffer
        for buffer in buffers
    )


def _rows_per_record(plane: Plane, layout: Layout) -> int:
    if plane.unit is Unit.CHECKPOINT:
        return 1
    if "group" in plane.dims:
        return layout.geometry.page_tokens // layout.geometry.compress_ratio
    return layout.geometry.page_tokens


def _check_siblings(mamba_pool: Any, layout: Layout) -> None:
    """Slot states registered on the pool are exactly the ones the layout stores."""
    found = {type(sibling).__name__ for sibling in mamba_pool._slot_siblings}
    names = {plane.name for plane in layout.checkpoint.planes}
    wanted = {
        sibling
        for sibling, plane in (
            ("ShortConvPool", "ple_conv"),
            ("NGramPool", "ple_ngram"),
        )
        if plane in names
    }
    if found != wanted:
        unknown = sorted(found - _KNOWN_SIBLINGS)
        raise _mismatch(
            "slot states of the GDN pool",
            f"{sorted(found)}" + (f" ({unknown} unknown)" if unknown else ""),
            f"{sorted(wanted)}",
        )


def _check_page(kv_pool: Any, layout: Layout) -> None:
    """Rows per page cannot be seen in a tensor; the pool has to tell."""
    geometry = layout.geometry
    for what, found, wanted in (
        ("page size of the KV pool", kv_pool.page_size, geometry.page_tokens),
        ("tokens per index key", kv_pool.qsa_compress_ratio, geometry.compress_ratio),
    ):
        if found != wanted:
            raise _mismatch(what, f"{found}", f"{wanted}")


def _check_layer_ids(kv_pool: Any, req_pool: Any, layout: Layout) -> None:
    geometry = layout.geometry
    for what, found, wanted in (
        ("QSA layers", kv_pool.full_attention_layer_id_mapping, geometry.kv_layers),
        ("GDN layers", req_pool.mamba_pool.mamba_layer_ids, geometry.gdn_layers),
        ("PLE layers", req_pool.short_conv_pool.layer_map, geometry.ple_layers),
    ):
        if tuple(found) != wanted:
            raise _mismatch(what, f"{list(found)}", f"{list(wanted)}")


def _check_names(found: Mapping[str, object], layout: Layout) -> None:
    wanted = {plane.name for plane in layout.planes}
    names = set(found)
    if names != wanted:
        raise _mismatch(
            "planes of the live pools",
            f"missing {sorted(wanted - names)}, extra {sorted(names - wanted)}",
            f"exactly {sorted(wanted)}",
        )


def _check_plane(arena_plane: ArenaPlane) -> None:
    plane, rows = arena_plane.plane, arena_plane.rows_per_record
    if len(arena_plane.tensors) != plane.layers:
        raise _mismatch(
            f"plane {plane.name}",
            f"{len(arena_plane.tensors)} layers",
            f"{plane.layers} layers",
        )
    for layer, tensor in enumerate(arena_plane.tensors):
        where = f"plane {plane.name}, layer {layer}"
        if _label(tensor.dtype) != plane.dtype.label:
            raise _mismatch(where, _label(tensor.dtype), plane.dtype.label)
        shape = (rows, *tensor.shape[1:]) if rows > 1 else tuple(tensor.shape[1:])
        if shape != plane.shape[1:]:
            raise _mismatch(where, f"record shape {shape}", f"{plane.shape[1:]}")
        _check_addresses(where, tensor, rows, plane.layer_bytes)


def _check_addresses(
    where: str, tensor: torch.Tensor, rows: int, layer_bytes: int
) -> None:
    """Records follow each other without a gap, inside the storage."""
    if not tensor.is_contiguous() or tensor.shape[0] % rows:
        raise _mismatch(
            where,
            f"{tensor.shape[0]} rows, stride {tensor.stride()}",
            f"contiguous rows, a multiple of {rows}",
        )
    storage = tensor.untyped_storage()
    base = storage.data_ptr() + tensor.storage_offset() * tensor.element_size()
    end = base - storage.data_ptr() + tensor.shape[0] // rows * layer_bytes
    if end > storage.nbytes():
        raise _mismatch(where, f"a storage of {storage.nbytes()} B", f"{end} B")


def _check_record_counts(arena: Arena) -> None:
    for unit in Unit:
        counts = {
            p.plane.name: {len(t) // p.rows_per_record for t in p.tensors}
            for p in arena.of(unit)
        }
        if len(set.union(*counts.values())) != 1:
            raise _mismatch(f"{unit.value} records", f"{counts}", "one count for all")


def _check_disjoint(arena: Arena) -> None:
    """No two layers of any planes share a byte: a view of the wrong place does."""
    ranges = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + p.records * p.plane.layer_bytes, where)
        for p in arena.planes.values()
        for layer, tensor in enumerate(p.tensors)
        for where in [f"plane {p.plane.name}, layer {layer}"]
    )
    for (_, end, one), (start, _, other) in pairwise(ranges):
        if start < end:
            raise _mismatch(other, f"memory shared with {one}", "memory of its own")


def _check_layer_order(arena: Arena) -> None:
    """Layers cut from one allocation lie in layer order, at one distance.

    Views in another order have the right shapes everywhere, and each layer would be
    stored in the place of another.
    """
    for plane in arena.planes.values():
        starts: dict[int, list[int]] = {}
        for tensor in plane.tensors:
            storage = tensor.untyped_storage().data_ptr()
            starts.setdefault(storage, []).append(tensor.data_ptr())
        for found in starts.values():
            distances = {after - before for before, after in pairwise(found)}
            if len(distances) > 1 or min(distances, default=1) < 0:
                raise _mismatch(
                    f"plane {plane.plane.name}",
                    f"layers at bytes {[start - found[0] for start in found]}",
                    "layer order, at one distance",
                )


def _label(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").removesuffix("fn")


def _mismatch(origin: str, found: str, wanted: str) -> LayoutMismatch:
    return LayoutMismatch(
        refusal(found=found, wanted=wanted, origin=origin, way_out=_WAY_OUT)
    )
