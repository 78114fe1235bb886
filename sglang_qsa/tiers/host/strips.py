"""Where the bytes of a record lie on the device, in the order in which a load brings
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from sglang_qsa.arena import Arena, ArenaPlane
from sglang_qsa.errors import LayoutMismatch, refusal
from sglang_qsa.layout import COPY_BYTES, Layout, Record, Unit


@dataclass(frozen=True, slots=True)
class Strip:
    """One layer of one plane: its bytes on the device and in a record."""

    rows: torch.Tensor
    """[records, bytes] uint8, a view of the pool."""
    offset: int
    """In the record."""
    needed_by: int
    """The model layer that reads it first."""

    @property
    def size(self) -> int:
        return self.rows.shape[1]

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class HostRecords:
    """Records of one kind, on the device and in host memory."""

    unit: Unit
    strips: tuple[Strip, ...]
    records: torch.Tensor
    """[records, stride] uint8 on the host."""
    tokens: int
    """HiCache's indices for one record."""


def strips_of(arena: Arena, record: Record) -> tuple[Strip, ...]:
    """The strips of one record kind, first needed first.

    Raises:
        LayoutMismatch: a layer is not a whole number of what a copy moves at a time.
    """
    spans = record.layer_spans()
    strips = [
        Strip(rows, span.offset, reader)
        for plane in arena.of(record.unit)
        for rows, span, reader in zip(
            plane.record_rows(),
            spans[plane.plane.name],
            readers(arena.layout, plane),
            strict=True,
        )
    ]
    for strip in strips:
        if strip.offset % COPY_BYTES or strip.size % COPY_BYTES:
            raise LayoutMismatch(
                refusal(
                    found=f"{strip.size} B at byte {strip.offset} of a record",
                    wanted=f"a multiple of {COPY_BYTES}",
                    origin=f"{record.unit.value} record in host memory",
                    way_out="leave --enable-hierarchical-cache out",
                )
            )
    return tuple(sorted(strips, key=lambda strip: strip.needed_by))


def readers(layout: Layout, plane: ArenaPlane) -> Iterable[int]:
    """The model layer that reads each layer of a plane first.

    N-gram ids are read once, with the first recurrent layer. The draft model runs after
    the last layer.
    """
    geometry, name = layout.geometry, plane.plane.name
    if name in ("ssm", "conv"):
        return geometry.gdn_layers
    if name == "ple_conv":
        return geometry.ple_layers
    if name == "ple_ngram":
        return geometry.gdn_layers[:1]
    if name.startswith("draft_"):
        return [geometry.last_layer] * plane.plane.layers
    return geometry.kv_layers


def in_pieces(kind: HostRecords, largest: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Strips cut for the copy kernel, in order.

    Args:
        largest: bytes that a piece has at most.
    Returns:
        The layer that needs the piece, and its row in the kernel's table.
    """
    host = kind.records.data_ptr()
    for strip in kind.strips:
        for start in range(0, strip.size, largest):
            yield (
                strip.needed_by,
                (
                    strip.rows.data_ptr() + start,
                    strip.size,
                    host + strip.offset + start,
                    kind.records.shape[1],
                    min(largest, strip.size - start),
                    kind.tokens,
                ),
            )
