"""Records in host memory, behind HiCache's host-pool interface.

One pool for each record kind owns memory and slots. Index keys are planes of the page
record; HiCache knows them as a pool of their own, so `PlanePool` is a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

from sglang_qsa.layout import Record, Span

LAYOUT = "page_first_direct"
"""HiCache's name for pages that are one plane after the other."""


class RecordPool(HostKVCache):  # type: ignore[misc]
    """Host records of one kind.

    Args:
        record: their planes.
        records: how many.
        tokens: HiCache indices that one record stands for; 1 for checkpoints.
        device: type of the device that the memory is pinned for.
        device_records: what the device holds, for upstream's log.
        shown: planes that storage reads and writes through this pool; the others have
            a `PlanePool`.
    """

    def __init__(
        self,
        record: Record,
        records: int,
        *,
        tokens: int,
        device: str,
        device_records: int,
        shown: Sequence[str],
        allocator_type: str,
        dummy: bool = False,
    ) -> None:
        self.record = record
        self._pinned_for = device
        self._parts = _touching(record, shown)
        self._shown_bytes = sum(part.size for part in self._parts)
        # Backends keep K and V of a page as two objects, and a state as one.
        spans = record.spans()
        self._pieces = self._parts if tokens == 1 else [spans[name] for name in shown]
        self.layer_num = self.target_layer_num = 1
        super().__init__(
            dtype=torch.uint8,
            device_capacity_tokens=device_records * tokens,
            size_per_token=record.stride_bytes // tokens,
            start_layer=0,
            end_layer=1,
            host_to_device_ratio=1.0,
            host_size=0,
            page_size=tokens,
            layout=LAYOUT,
            pin_memory=True,
            device="cpu",
            allocator_type=allocator_type,
            pool_label=record.unit.value,
            host_token_capacity=records * tokens,
            is_dummy=dummy,
        )

    def init_kv_buffer(self) -> torch.Tensor:
        buffer: torch.Tensor = ALLOC_MEMORY_FUNCS[self._pinned_for](
            (self.page_num, self.record.stride_bytes),
            dtype=torch.uint8,
            device="cpu",
            pin_memory=self.pin_memory,
            allocator=self.allocator,
            registration_granularity_bytes=self.record.stride_bytes,
        )
        return buffer

    def get_size_per_token(self) -> int:
        return int(self.size_per_token)

    get_ksize_per_token = get_size_per_token

    # -- storage -----------------------------------------------------------------

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        """The record of HiCache index `index`, without padding: a view if it can be."""
        row = self.kv_buffer[int(index) // self.page_size]
        parts = [row[part.offset : part.offset + part.size] for part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(
            self._shown_bytes, dtype=torch.uint8, pin_memory=self.pin_memory
        )

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        """Fill the record of `index` from what `get_data_page` gave.

        Raises:
            ValueError: it is of another size; nothing was written.
        """
        data = data_page.contiguous().view(torch.uint8).reshape(-1)
        if data.shape[0] != self._shown_bytes:
            raise ValueError(
                f"{self.pool_label} of {data.shape[0]} B, this server's has "
                f"{self._shown_bytes} B"
            )
        row, start = self.kv_buffer[int(index) // self.page_size], 0
        for part in self._parts:
            row[part.offset : part.offset + part.size] = data[start:][: part.size]
            start += part.size

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], ...]:
        """Addresses and sizes for storage that reads memory in place.

        Raises:
            NotImplementedError: such storage knows K and V of a page, and has no name
                for draft rows.
        """
        if self.page_size > 1 and len(self._pieces) > 2:
            raise NotImplementedError("zero-copy storage of pages with draft rows")
        rows = (indices[:: self.page_size] // self.page_size).tolist()
        base, stride = self.kv_buffer.data_ptr(), self.record.stride_bytes
        parts = self._pieces
        addresses = [
            base + row * stride + part.offset for row in rows for part in parts
        ]
        return addresses, [part.size for _ in rows for part in parts]

    def get_hybrid_pool_buffer(self) -> list[torch.Tensor]:
        return [self.kv_buffer]

    # -- copies are made by the engine, for all layers and pools at once -----------

    def load_to_device_per_layer(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("records are copied by sglang_qsa's transfer engine")

    backup_from_device_all_layer = load_to_device_per_layer


class PlanePool(RecordPool):
    """Planes of another pool's records, under a name of their own.

    It owns no memory, and what it shows moves with the records.
    """

    def __init__(self, owner: RecordPool, shown: Sequence[str]) -> None:
        super().__init__(
            owner.record,
            owner.page_num,
            tokens=owner.page_size,
            device=owner._pinned_for,
            device_records=0,
            shown=shown,
            allocator_type="default",
            dummy=True,
        )
        self.kv_buffer = owner.kv_buffer
        self.size_per_token = 0

    def destroy(self) -> None:
        self.kv_buffer = None

    def get_hybrid_pool_buffer(self) -> list[torch.Tensor]:
        return []


def _touching(record: Record, shown: Sequence[str]) -> list[Span]:
    """The spans of `shown`, those that touch as one."""
    spans = record.spans()
    parts: list[Span] = []
    for name in shown:
        span = spans[name]
        if parts and parts[-1].offset + parts[-1].size == span.offset:
            span = Span(parts[-1].offset, parts.pop().size + span.size)
        parts.append(span)
    return parts
