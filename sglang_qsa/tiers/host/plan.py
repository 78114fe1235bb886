"""One submission under way."""

from __future__ import annotations

from sglang.srt.mem_cache.l2_transfer import device_module, make_timing_event_pair

from sglang_qsa.tiers.host.moves import Moves


class Plan:
    """What moves, and the events of its copies. Lives until `ended` has happened: the
    kernel reads the indices of `moves` by address."""

    def __init__(self, moves: Moves | None) -> None:
        self.moves = moves
        self.sent = device_module.Event()
        """After the plan is on the device."""
        self.begun, self.ended, self.timed = make_timing_event_pair()
