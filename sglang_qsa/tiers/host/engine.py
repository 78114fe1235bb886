"""One submission of HiCache: all records of all pools, in few launches.

Upstream (sglang 0.5.23) copies plane by plane and layer by layer, side states with
calls that wait for the device. Here nothing waits: streams and events keep the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sglang.srt.managers.cache_controller import LayerDoneCounter, LayerLoadingEvent
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (
    HybridCacheController,
)
from sglang.srt.mem_cache.l2_transfer import (
    L2TransferEngine,
    TransferCompletion,
)

from sglang_qsa.tiers.host.moves import Moves, moves_of
from sglang_qsa.tiers.host.plan import Plan

PARTS = 3
"""Of a load: the layers of a model come in as many."""


class Copies(Protocol):
    """Copies of all record kinds."""

    def plan(self, moves: Moves) -> Plan:
        """Whatever the copies need, ordered on the current stream."""

    def to_host(self, plan: Any, stream: Any) -> None:
        """Fill the plan's records on the host."""

    def to_device(self, plan: Any, part: int, stream: Any) -> None:
        """Fill what the layers of one part need."""


class RecordEngine(L2TransferEngine):  # type: ignore[misc]
    """Upstream's streams around copies of records.

    Args:
        copies: of this server's pools.
        ends: last layer of each part of a load.
    """

    def __init__(self, copies: Copies, ends: Sequence[int]) -> None:
        super().__init__(io_backend="records")
        self._copies = copies
        self._ends = ends

    def submit_device_to_host(self, moves: Moves) -> TransferCompletion:
        """Back records up. Returns at once; the stream waits for the writers."""
        stream = self.device_to_host_stream
        plan = self._begin(moves, stream)
        self._copies.to_host(plan, stream)
        return self._end(plan, stream)

    def submit_host_to_device(
        self,
        moves: Moves,
        *,
        transfer_layer_id_max: int,
        start_event: Any = None,
        on_layer_done: Callable[[int], None] | None = None,
    ) -> TransferCompletion:
        """Load records, a part of the layers at a time; `on_layer_done` for the last of
        each part."""
        stream = self.host_to_device_stream
        plan = self._begin(moves, stream)
        for part, end in enumerate(self._ends):
            self._copies.to_device(plan, part, stream)
            if on_layer_done is not None:
                on_layer_done(end)
        return self._end(plan, stream)

    def _begin(self, moves: Moves, stream: Any) -> Plan:
        """Order `stream` after whatever made the indices, and the plan."""
        plan = self._copies.plan(moves)
        plan.sent.record()
        plan.sent.wait(stream)
        plan.begun.record(stream)
        return plan

    @staticmethod
    def _end(plan: Plan, stream: Any) -> TransferCompletion:
        plan.ended.record(stream)
        return TransferCompletion(plan.begun, plan.ended, plan.timed)


class PartLoading(LayerLoadingEvent):  # type: ignore[misc]
    """Layers of one part share the event of its last, on the stream of the loads."""

    def __init__(self, num_layers: int, ends: Sequence[int], stream: Any) -> None:
        super().__init__(num_layers)
        self._stream = stream
        self.load_events: list[Any] = [
            self.load_events[next(end for end in ends if layer <= end)]
            for layer in range(num_layers)
        ]

    def complete(self, layer_index: int) -> None:
        self.load_events[layer_index].record(self._stream)


class RecordController(HybridCacheController):  # type: ignore[misc]
    """HiCache's controller with the engine above.

    Host indices stay on the CPU and device indices on the device: reading them there
    would wait for whatever the device is doing.
    """

    def __init__(
        self, *args: Any, copies: Copies, ends: Sequence[int], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        engine = RecordEngine(copies, ends)
        self.l2_transfer_engine = engine
        layers, stream = self.transfer_layer_id_max, engine.host_to_device_stream
        counter = LayerDoneCounter(layers)
        counter.events = [PartLoading(layers, ends, stream) for _ in counter.events]
        self.layer_done_counter = counter

    def _move_op_indices(self, op: Any) -> tuple[Any, Any, Any]:
        return op.host_indices, op.device_indices, op.pool_transfers

    _move_write_operation = _move_op_indices

    def _l2_transfers(
        self, host_indices: Any, device_indices: Any, pool_transfers: Any = None
    ) -> Moves:
        """What the engine moves; index keys are in the page."""
        states = [
            (transfer.host_indices, transfer.device_indices)
            for transfer in pool_transfers or ()
            if transfer.name == PoolName.MAMBA
        ]
        self._moved = moves_of(host_indices, device_indices, states)
        return self._moved

    _l2_load_transfers = _l2_transfers

    def _transfer_num_bytes(self, op: Any) -> int:
        """What upstream's counters add once it has seen the end of the copies.

        Asked for the operation just submitted. Upstream counts a checkpoint for each
        place that it goes to; two places are one trip over the link.
        """
        states = self.mem_pool_host.entry_map[PoolName.MAMBA].host_pool
        in_page = sum(
            entry.host_pool.size_per_token
            for entry in self.mem_pool_host.entries
            if entry.host_pool is not states
        )
        moved = self._moved
        trips = len(moved.checkpoints)
        return len(moved.host) * int(in_page) + trips * int(states.size_per_token)


def part_ends(layers: int, parts: int = PARTS) -> list[int]:
    """The last layer of each part of a load; a part is as large as all before it.

    The first is small, so that the forward soon begins; each event costs the scheduler.
    """
    ends = [layers - 1]
    while len(ends) < parts and ends[0] > 0:
        ends.insert(0, ends[0] // 2)
    return ends
