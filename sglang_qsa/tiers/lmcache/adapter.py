"""Which tensors the daemon moves: every plane of the layout, none by accident."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from lmcache.integration.sglang.lmcache_mp_metadata import SGLangKVComponentGroup
from lmcache.integration.sglang.unified_kv_adapter import SGLangUnifiedKVAdapter

from sglang_qsa.arena import Arena, ArenaPlane
from sglang_qsa.errors import LayoutMismatch, refusal
from sglang_qsa.layout import DType, Unit

_TOKEN_NATIVE = frozenset({"k", "v"})
"""Planes the daemon understands as `[pages, tokens, heads, dim]`; every other plane
is opaque to it, one row of bytes per page or slot."""
_FP8 = frozenset({DType.FP8_E4M3, DType.FP8_E5M2})
"""Registered as bytes: the daemon's torch path stores FP8 and fails to load it
(lmcache 0.5.6)."""

_COPY_BYTES = 16


class QsaKVAdapter(SGLangUnifiedKVAdapter):  # type: ignore[misc]
    """Upstream's adapter with the planes taken from an `Arena`.

    Upstream resolves pools by itself and knows neither compressed index keys nor
    PLE windows. The group geometry (blocks, checkpoint grid) stays upstream's.
    """

    def __init__(self, *, arena: Arena, **upstream: Any) -> None:
        super().__init__(**upstream)
        self.arena = arena

    def resolve_registered_groups(self) -> list[SGLangKVComponentGroup]:
        """The FULL group (pages) and the MAMBA group (checkpoints).

        Raises:
            LayoutMismatch: a group does not carry exactly the declared bytes.
        """
        groups = []
        for group in super().resolve_registered_groups():
            unit = Unit.CHECKPOINT if group.recurrent_state else Unit.PAGE
            tensors = _tensors(self.arena, unit)
            _check_bytes(self.arena, unit, tensors)
            _check_alignment(self.arena, unit)
            groups.append(
                dataclasses.replace(
                    group,
                    kv_tensors=tuple(tensor for tensor, _ in tensors),
                    tensor_rows_per_block=tuple(rows for _, rows in tensors),
                )
            )
        return groups

    def _resolve_mamba_pool_tensors(self, mamba_pool: Any) -> tuple[torch.Tensor, ...]:
        """Placeholder for the parent's pass, which refuses PLE planes."""
        return ()


def _tensors(arena: Arena, unit: Unit) -> list[tuple[torch.Tensor, int]]:
    """Registered tensors of one group in layout order, each with its rows per block."""
    return [pair for plane in arena.of(unit) for pair in _plane_tensors(plane)]


def _plane_tensors(plane: ArenaPlane) -> list[tuple[torch.Tensor, int]]:
    if plane.plane.name in _TOKEN_NATIVE:
        fp8 = plane.plane.dtype in _FP8
        return [
            (tensor.view(torch.uint8) if fp8 else tensor, plane.rows_per_record)
            for tensor in plane.tensors
        ]
    if plane.plane.unit is Unit.PAGE:
        return [(rows, 1) for rows in plane.record_rows()]
    return [(rows[:, None, :], 1) for rows in plane.record_rows()]


def _check_bytes(
    arena: Arena, unit: Unit, tensors: list[tuple[torch.Tensor, int]]
) -> None:
    record = arena.layout.page if unit is Unit.PAGE else arena.layout.checkpoint
    found = sum(tensor[:rows].nbytes for tensor, rows in tensors)
    if found != record.record_bytes:
        raise LayoutMismatch(
            refusal(
                found=f"{found} B registered per {unit.value}",
                wanted=f"{record.record_bytes} B",
                origin="LMCache registration",
                way_out="report this configuration",
            )
        )


def _check_alignment(arena: Arena, unit: Unit) -> None:
    """Refuse a plane the daemon cannot copy on a GPU.

    lmcache 0.5.6 packs the planes of its staging buffer without padding and copies 16
    bytes at a time. A row of another multiple ends in a misaligned access, after
    which the daemon fails every client.
    """
    for plane in arena.of(unit):
        if plane.plane.layer_bytes % _COPY_BYTES:
            raise LayoutMismatch(
                refusal(
                    found=f"{plane.plane.layer_bytes} B per layer of a record",
                    wanted=f"a multiple of {_COPY_BYTES} B",
                    origin=f"plane {plane.plane.name}, LMCache registration",
                    way_out="serve this model without the LMCache tier",
                )
            )
