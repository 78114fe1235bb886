"""Take a prefill's snapshot where the planner wants it.

Upstream (sglang 0.5.23) snapshots each forward once, at the last multiple of 64 tokens
from its start, or at a branch point inside it. A prompt of exactly 64·k tokens then
has no state below its last token, and a branch point displaces the prompt's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_qsa.boundary import plan
from sglang_qsa.hooks import active, second
from sglang_qsa.hooks.base import Hook
from sglang_qsa.hooks.chunks import hit_len


def snapshot(original: Callable[..., Any], batch: Any, req: Any) -> Any:
    """Record the best depths that this forward of `req` reaches: upstream's one, and
    one more where the rule asks for two."""
    rule = active.rule()
    if rule is None:
        return original(batch, req)
    depths = plan(
        rule.grid,
        prefix_len=req.prefix_len,
        end=req.extend_end,
        prompt_len=len(req.full_untruncated_fill_ids),
        branch=req.mamba_branching_seqlen,
        hit_len=hit_len(req),
    )
    second.release(batch.req_to_token_pool, req)
    if not depths:
        return _skip(req)
    best, lowest = depths[0], min(depths)
    if len(depths) > 1 and second.reserve(batch, req, lowest):
        # Published lowest first, as by forwards that end there.
        best = max(depths)
    return _take(original, batch, req, best)


def _take(original: Callable[..., Any], batch: Any, req: Any, depth: int) -> Any:
    """Upstream takes a branch point inside a forward wherever it lies; one at its end
    is the boundary that it takes without one."""
    branch = req.mamba_branching_seqlen
    req.mamba_branching_seqlen = depth
    try:
        return original(batch, req)
    finally:
        req.mamba_branching_seqlen = branch


def _skip(req: Any) -> Any:
    """What upstream returns for a forward that is too short for a snapshot."""
    from sglang.srt.managers.schedule_batch import _MambaRadixCacheV2TrackEntry

    return _MambaRadixCacheV2TrackEntry(
        track_mask=False,
        track_position=req.kv.mamba_next_track_idx,
        track_seqlen=-1,
    )


def require_side_states(original: Callable[[Any], Any], forward_batch: Any) -> Any:
    """Refuse a forward that snapshots GDN states and would skip the PLE windows.

    Both take their boundary from here. Conv states would stop at an assertion, PLE
    windows would keep the row of the slot's previous occupant.
    """
    lengths = original(forward_batch)
    if lengths is None and any(forward_batch.mamba_prefill_track_mask_cpu or ()):
        raise RuntimeError(
            "sglang_qsa: a forward snapshots GDN states but has no boundary for the "
            "PLE windows; nothing of it may be published"
        )
    return lengths


SNAPSHOT = Hook(
    "checkpoint-snapshot",
    "sglang.srt.managers.schedule_batch.ScheduleBatch"
    "._mamba_radix_cache_v2_req_prepare_for_extend",
    "around",
    snapshot,
)
SIDE_STATES = Hook(
    "checkpoint-side-states",
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
    ".mamba_track_aligned_lens",
    "around",
    require_side_states,
)
