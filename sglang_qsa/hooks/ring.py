"""Keep rejected drafts of MTP out of index keys: two groups for each request's ring.

Upstream (sglang 0.5.23) keeps the raw index keys of a request's open group at
`position % ratio`. A verify step writes those of all drafts before it closes a group:
drafts behind the group's end overwrite accepted keys in front, and stay there when they
are rejected. The compressed keys of generated tokens are then of mixed groups, and with
them the selection beyond 2,048 tokens and what every tier keeps.

Whoever addresses a ring is changed, or nobody: a pool is only made larger where all
hooks are in place, and they do nothing in a process without such a pool. Keys then lie
at `position % (groups * ratio)`: upstream's own arithmetic, told that a group has as
many tokens as the ring.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_qsa.errors import QsaError
from sglang_qsa.hooks.base import Hook, require_active
from sglang_qsa.hooks.launch import refuse

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

GROUPS = 2
"""Of a ring with MTP: an open group, and as many drafts as a group has tokens, the most
that upstream verifies (`_require_chain_speculation`)."""

_groups = 1
"""Of each ring of this process; its pools are built before anything addresses them."""

_QSA = "sglang.srt.layers.attention.qsa"


def build_pool(
    original: Callable[..., None],
    pool: Any,
    *args: Any,
    num_request_slots: int,
    **options: Any,
) -> None:
    """Build a `QSATokenToKVPool`, with `GROUPS` groups to a ring in an MTP server.

    `num_request_slots` sizes nothing but the rings; what the pool says of its requests
    stays true.
    """
    global _groups
    if _drafts():
        _require_all()
        _groups = GROUPS
    slots = _groups * num_request_slots
    original(pool, *args, num_request_slots=slots, **options)
    pool.qsa_num_request_slots = int(num_request_slots)
    if _groups > 1:
        from sglang_qsa.arena import ring_buffers

        logger.info(
            "sglang_qsa: %d groups of raw index keys for each of %d requests (MTP), "
            "%.1f MB in all",
            _groups,
            num_request_slots,
            sum(ring.nbytes for ring in ring_buffers(pool)) / 1e6,
        )


def _drafts() -> bool:
    """Whether this server verifies drafts, and the rings are its own affair."""
    from sglang.srt.runtime_context import get_disagg, get_spec

    if get_spec().speculative_algorithm is None:
        return False
    role = get_disagg().disaggregation_mode
    if role in (None, "null"):
        return True
    _warn_of_role(role)
    return False


@functools.cache
def _warn_of_role(role: str) -> None:
    """Rings of a P/D role go to a peer, which may be without this plugin."""
    logger.warning(
        "sglang_qsa: index keys with MTP are not repaired in the role %s, whose peer "
        "has to have rings of the same size: beyond 2,048 tokens answers differ from "
        "those without drafts (README, Limits)",
        role,
    )


def _require_all() -> None:
    try:
        require_active(RING)
    except QsaError as error:
        raise refuse(error) from None


def pending_slots(
    original: Callable[..., torch.Tensor], *, compress_ratio: int, **rows: Any
) -> torch.Tensor:
    """Slot of each token's raw key, [tokens] int64.

    A prefill keeps the last keys from a multiple of the ring's tokens on, not of the
    group's: a closed group more, whose place is nobody else's.
    """
    return original(compress_ratio=_groups * compress_ratio, **rows)


def member_slots(
    original: Callable[..., torch.Tensor], *, compress_ratio: int, **groups: Any
) -> torch.Tensor:
    """Slots of each group's raw keys, oldest first, [groups, compress_ratio] int64."""
    slots = original(compress_ratio=_groups * compress_ratio, **groups)
    return slots[:, -compress_ratio:].contiguous()


def address_rows(_: None, *, metadata: Any, **launch: Any) -> None:
    """Address the rows of a graph's replay, after upstream's kernel did."""
    indexer = metadata.indexer_metadata
    _address(
        (
            indexer.decode_logical_positions,
            metadata.row_req_pool_indices,
            indexer.pending_ring_slots,
            indexer.graph_ring_group_locs,
        )
    )


def address_draft_rows(_: None, args: tuple[Any, ...], *launch: Any) -> None:
    """Address the rows of all steps of a draft, after upstream's kernel did."""
    # As `prepare_draft_graph_metadata` orders them.
    _address(*((step[5], step[1], step[6], step[7]) for step in args[0]))


def _address(*steps: tuple[torch.Tensor, ...]) -> None:
    """Positions and requests are as upstream's kernel has just written them."""
    if _groups == 1:
        return
    from sglang_qsa_kernels.ring_slots import Step, ring_slots

    ring_slots([Step(*step) for step in steps], groups=_groups)


BUILD_POOL = Hook(
    "ring-pool",
    "sglang.srt.mem_cache.qsa_kv_pool.QSATokenToKVPool.__init__",
    "around",
    build_pool,
)
PENDING_SLOTS = Hook(
    "ring-pending-slots",
    f"{_QSA}.metadata.build_pending_ring_slots",
    "around",
    pending_slots,
)
MEMBER_SLOTS = Hook(
    "ring-member-slots",
    f"{_QSA}.metadata.build_group_ring_slots",
    "around",
    member_slots,
)
ROWS = Hook(
    "ring-rows", f"{_QSA}.graph_metadata.launch_graph_metadata", "after", address_rows
)
DRAFT_ROWS = Hook(
    "ring-draft-rows",
    f"{_QSA}.graph_metadata.launch_draft_graph_metadata",
    "after",
    address_draft_rows,
)
RING = (BUILD_POOL, PENDING_SLOTS, MEMBER_SLOTS, ROWS, DRAFT_ROWS)
"""All or none."""
