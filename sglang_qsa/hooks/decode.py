"""Snapshot decoding requests on the checkpoint grid.

Upstream (sglang 0.5.23) does so every 256 tokens by default, and the next turn
computes up to 255 tokens again. A snapshot overwrites the one before it in the
request's own slots: a finer interval costs a device copy and no memory.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook


def track_grid(original: Callable[[int], int], tree_page: int) -> int:
    """Tokens between two snapshots of a decoding request."""
    rule = active.rule()
    return original(tree_page) if rule is None else rule.decode_interval


TRACK_GRID = Hook(
    "checkpoint-decode-grid",
    "sglang.srt.runtime_context.mamba_track_grid",
    "around",
    track_grid,
)
