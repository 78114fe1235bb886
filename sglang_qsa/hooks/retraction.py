"""Keep index keys and pending rings when a request leaves the device and returns.

A decode-side retraction copies a request to host memory and back into other pages
and another request slot. Upstream (sglang 0.5.23) copies K, V and the recurrent state
and forgets the QSA side of the pool, so that the request comes back with the keys of
whoever had those pages before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_qsa.hooks.base import Hook

if TYPE_CHECKING:
    import torch

_POOL = "sglang.srt.mem_cache.qsa_kv_pool.QSATokenToKVPool"


@dataclass(frozen=True, slots=True)
class RetractedRows:
    """Upstream's copy, and the rows of every QSA buffer beside it."""

    upstream: Any
    rows: tuple[torch.Tensor, ...]


def copy_out(
    original: Callable[..., Any], pool: Any, indices: Any, **slots: Any
) -> RetractedRows:
    """Copy a request to the host with its index keys and rings."""
    from sglang_qsa.arena import request_rows

    upstream = original(pool, indices, **slots)
    rows = request_rows(pool, indices, slots.get("req_pool_index"))
    return RetractedRows(upstream, tuple(buffer[at].cpu() for buffer, at in rows))


def copy_in(
    original: Callable[..., Any],
    pool: Any,
    saved: RetractedRows,
    indices: Any,
    **slots: Any,
) -> None:
    """Copy a request back, into the pages and the slot it has now."""
    from sglang_qsa.arena import request_rows

    original(pool, saved.upstream, indices, **slots)
    rows = request_rows(pool, indices, slots.get("req_pool_index"))
    for (buffer, at), data in zip(rows, saved.rows, strict=True):
        buffer[at] = data.to(buffer.device)


def move(original: Callable[..., Any], pool: Any, target: Any, source: Any) -> None:
    """Move index keys with their tokens."""
    from sglang_qsa.arena import group_rows

    original(pool, target, source)
    for buffer, target_rows, source_rows in group_rows(pool, target, source):
        buffer[target_rows] = buffer[source_rows]


COPY_OUT = Hook("retraction-copy-out", f"{_POOL}.get_cpu_copy", "around", copy_out)
COPY_IN = Hook("retraction-copy-in", f"{_POOL}.load_cpu_copy", "around", copy_in)
MOVE = Hook("retraction-move", f"{_POOL}.move_kv_cache", "around", move)
