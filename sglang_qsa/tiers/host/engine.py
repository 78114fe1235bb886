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
    device_module,
)

from sglang_qsa.tiers.host.moves import Moves, moves_of
from sglang_qsa.tiers.host.plan import Plan

PARTS = 3
"""Of a load: the layers of a model come in as many."""


class Copies(Protocol):
    """Copies of all record kinds."""

    def plan(self) -> Plan:
        """One with no moves yet."""

    def to_host(self, plan: Any, stream: Any) -> None:
        """Fill the plan's records on the host."""

    def to_device(self, plan: Any, part: int, stream: Any) -> None:
        """Fill what the layers of one part need."""

    def submitted(self, plan: Any) -> None:
        """The plan may be used again once it has ended."""


class RecordStream(device_module.Stream):  # type: ignore[misc]
    """Waits for other streams with an event of its own: torch's would make one each
    time, and destroy it."""

    def __init__(self) -> None:
        super().__init__()
        self._reached = device_module.Event()

    def wait_stream(self, stream: Any) -> None:
        self._reached.record(stream)
        self._reached.wait(self)


class RecordEngine(L2TransferEngine):  # type: ignore[misc]
    """Upstream's streams around copies of records.

    Args:
        copies: of this server's pools.
        ends: last layer of each part of a load.
    """

    def __init__(self, copies: Copies, ends: Sequence[int]) -> None:
        super().__init__(io_backend="records")
        self.device_to_host_stream = RecordStream()
        self.host_to_device_stream = RecordStream()
        self._copies = copies
        self._ends = ends

    def submit_device_to_host(self, plan: Plan) -> TransferCompletion:
        """Back records up. Returns at once; the stream waits for the writers."""
        stream = self.device_to_host_stream
        self._begin(plan, stream, None)
        self._copies.to_host(plan, stream)
        return self._end(plan, stream)

    def submit_host_to_device(
        self,
        plan: Plan,
        *,
        transfer_layer_id_max: int,
        start_event: Any = None,
        on_layer_done: Callable[[int], None] | None = None,
    ) -> TransferCompletion:
        """Load records, a part of the layers at a time; `on_layer_done` for the last of
        each part."""
        stream = self.host_to_device_stream
        self._begin(plan, stream, start_event)
        for part, end in enumerate(self._ends):
            self._copies.to_device(plan, part, stream)
            if on_layer_done is not None:
                on_layer_done(end)
        return self._end(plan, stream)

    def _begin(self, plan: Plan, stream: Any, start_event: Any) -> None:
        """Order `stream` after whatever made the indices: after `start_event`, which
        upstream records when the plan has its last operation."""
        if start_event is None:
            stream.wait_stream(device_module.current_stream())
        else:
            start_event.wait(stream)
        plan.begun.record(stream)

    def _end(self, plan: Plan, stream: Any) -> TransferCompletion:
        plan.ended.record(stream)
        self._copies.submitted(plan)
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


class Ordered:
    """What one submission moves, where upstream has an operation.

    Upstream lists operations, and concatenates their indices when it submits them. By
    then the scheduler's caches are cold; when one is ordered, they are warm from the
    allocation of its indices.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.node_ids: list[int] = []
        self.device_indices = range(0)
        """Upstream asks for their number."""
        self.num_tokens_by_pool: dict[str, int] = {}
        self.num_bytes = 0


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
        self._copies = copies
        layers, stream = self.transfer_layer_id_max, engine.host_to_device_stream
        counter = LayerDoneCounter(layers)
        counter.events = [PartLoading(layers, ends, stream) for _ in counter.events]
        self.layer_done_counter = counter

    def write(self, *args: Any, flush: bool = True, **options: Any) -> Any:
        indices = super().write(*args, flush=False, **options)
        if indices is not None:
            self._join(self.write_queue)
            if flush:
                self.start_writing()
        return indices

    def load(self, *args: Any, **options: Any) -> Any:
        indices = super().load(*args, **options)
        if indices is not None:
            self._join(self.load_queue)
        return indices

    def _join(self, queue: list[Any]) -> None:
        """Make the operation that upstream appended part of the next submission."""
        op = queue.pop()
        if not queue:
            queue.append(Ordered(self._copies.plan()))
        ordered = queue[0]
        moves = _moves(op)
        ordered.plan.add(moves)
        ordered.node_ids += op.node_ids
        tokens = len(moves.host)
        ordered.device_indices = range(len(ordered.device_indices) + tokens)
        counts = ordered.num_tokens_by_pool
        for name, count in super()._num_tokens_by_pool(op).items():
            counts[name] = counts.get(name, 0) + count
        ordered.num_bytes += self._bytes_of(moves)

    def _bytes_of(self, moves: Moves) -> int:
        """Upstream counts a checkpoint for each place that it goes to; two places are
        one trip over the link."""
        states = self.mem_pool_host.entry_map[PoolName.MAMBA].host_pool
        in_page = sum(
            entry.host_pool.size_per_token
            for entry in self.mem_pool_host.entries
            if entry.host_pool is not states
        )
        trips = len(moves.checkpoints)
        return len(moves.host) * int(in_page) + trips * int(states.size_per_token)

    def _move_op_indices(self, op: Any) -> tuple[Plan, None, None]:
        """The plan. Requests that are retracted come with an operation of their own."""
        if isinstance(op, Ordered):
            return op.plan, None, None
        plan = self._copies.plan()
        plan.add(_moves(op))
        return plan, None, None

    _move_write_operation = _move_op_indices

    def _l2_transfers(self, plan: Plan, *_: None) -> Plan:
        return plan

    _l2_load_transfers = _l2_transfers

    def _num_tokens_by_pool(self, op: Ordered) -> dict[str, int]:
        return op.num_tokens_by_pool

    def _transfer_num_bytes(self, op: Ordered) -> int:
        return op.num_bytes


def _moves(op: Any) -> Moves:
    """Of one of upstream's operations; index keys are in the page."""
    states = [
        (transfer.host_indices, transfer.device_indices)
        for transfer in op.pool_transfers or ()
        if transfer.name == PoolName.MAMBA
    ]
    return moves_of(op.host_indices, op.device_indices, states)


def part_ends(layers: int, parts: int = PARTS) -> list[int]:
    """The last layer of each part of a load; a part is as large as all before it.

    The first is small, so that the forward soon begins; each event costs the scheduler.
    """
    ends = [layers - 1]
    while len(ends) < parts and ends[0] > 0:
        ends.insert(0, ends[0] // 2)
    return ends
