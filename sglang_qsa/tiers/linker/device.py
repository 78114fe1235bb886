"""Whole records in the device pools, read and written plane by plane."""

from __future__ import annotations

import torch

from sglang_qsa.arena import Arena
from sglang_qsa.layout import Unit


class DeviceRecords:
    """The records of one kind that the pools of this rank hold.

    Both methods work on the current stream.
    """

    def __init__(self, arena: Arena, unit: Unit) -> None:
        record = arena.layout.page if unit is Unit.PAGE else arena.layout.checkpoint
        self.record_bytes = record.record_bytes
        spans = record.layer_spans()
        self._parts = [
            (rows, span.offset, span.offset + span.size)
            for plane in arena.of(unit)
            for rows, span in zip(
                plane.record_rows(), spans[plane.plane.name], strict=True
            )
        ]
        self._device = self._parts[0][0].device

    def read(self, indices: torch.Tensor) -> torch.Tensor:
        """Records as `[n, record_bytes]` uint8 in host memory.

        Args:
            indices: `[n]` int64, pages or slots; on any device.
        """
        shape = (len(indices), self.record_bytes)
        records = torch.empty(shape, dtype=torch.uint8, device=self._device)
        indices = indices.to(self._device)
        for rows, start, end in self._parts:
            records[:, start:end] = rows.index_select(0, indices)
        return records.cpu()

    def write(self, indices: torch.Tensor, records: torch.Tensor) -> None:
        """Put `[n, record_bytes]` uint8 of any device into the pools."""
        records, indices = records.to(self._device), indices.to(self._device)
        for rows, start, end in self._parts:
            rows.index_copy_(0, indices, records[:, start:end])
