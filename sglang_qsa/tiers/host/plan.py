"""One submission, from its first operation to the end of its copies."""

from __future__ import annotations

from sglang.srt.mem_cache.l2_transfer import make_timing_event_pair

from sglang_qsa.tiers.host.moves import Moves


class Plan:
    """What moves, and the events of its copies. Lives until `ended` has happened: the
    kernel reads the indices of `moves` by address."""

    def __init__(self) -> None:
        self.moves: list[Moves] = []
        self.begun, self.ended, self.timed = make_timing_event_pair()

    def add(self, moves: Moves) -> None:
        """One operation more. Its device indices may still be under way."""
        self.moves.append(moves)
