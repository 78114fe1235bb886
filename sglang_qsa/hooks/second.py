"""A second state that one prefill forward of a request keeps, beside upstream's.

Where a prompt leaves what another has cached, two depths are worth a state: the branch
and the prompt's own anchor. Upstream (sglang 0.5.23) carries one for each request and
forward. The deeper one stays with it; the other gets a slot of its own here, which
`second_forward` fills and the tree takes over (`tiers.second`) before the deeper one.
A request holds at most one, from the start of a forward to its publication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from sglang_qsa.hooks.base import Hook

if TYPE_CHECKING:
    import torch

_HELD = "_qsa_second"
_PRESENTED = "_qsa_presented"

_SLOTS_TO_SPARE = 2
"""For each request of the batch: publishing its own state takes one more slot, and the
running ones must not run dry for a state that nobody has asked for yet."""


class Part(Enum):
    """What a state consists of, by who fills it."""

    GDN = "gdn"
    PLE = "ple"
    NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class SecondState:
    """One state between a forward that takes it and the tree."""

    start: int
    """Tokens before the forward that takes it."""
    depth: int
    slot: torch.Tensor
    """[1] int64, on the device."""
    filled: set[Part] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Whether a forward has filled the slot. One that took another way than
        `second_forward` knows, such as a graph, has not."""
        return self.filled == set(Part)


def reserve(batch: Any, req: Any, depth: int) -> bool:
    """Give the state at `depth` a slot; False where there is none to spare.

    Nor to a session, which publishes by itself, or to a request that is barred from
    the tree.
    """
    sessions = req.session, req.session_id
    if sessions != (None, None) or req.skip_radix_cache_insert:
        return False
    slot = _spare_slot(batch)
    if slot is None:
        return False
    setattr(req, _HELD, SecondState(req.prefix_len, depth, slot))
    return True


def _spare_slot(batch: Any) -> torch.Tensor | None:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    allocator, tree = batch.req_to_token_pool.mamba_allocator, batch.tree_cache
    free = allocator.available_size()
    if free + tree.mamba_evictable_size() <= _SLOTS_TO_SPARE * len(batch.reqs):
        return None
    if not free:
        tree.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
    slot: torch.Tensor | None = allocator.alloc(1)
    return slot


def held(req: Any) -> SecondState | None:
    """What this request holds now."""
    second: SecondState | None = getattr(req, _HELD, None)
    return second


def take(req: Any) -> SecondState | None:
    """What this request holds; from here on the caller answers for its slot."""
    second = held(req)
    if second is not None:
        setattr(req, _HELD, None)
    return second


def release(pool: Any, req: Any) -> None:
    """Free the slot of a state that is not published."""
    second = take(req)
    if second is not None:
        pool.mamba_allocator.free(second.slot)


@contextmanager
def presented(req: Any, second: SecondState) -> Iterator[None]:
    """Let the request look to the tree as if its forward had ended at the state.

    It is then one of several chunks, so an answer that is complete already is not.
    """
    kv = req.kv
    saved = req.finished_reason, kv.mamba_last_track_seqlen, kv.mamba_prev_track_seqlen
    req.finished_reason = None
    setattr(req, _PRESENTED, second)
    try:
        yield
    finally:
        setattr(req, _PRESENTED, None)
        req.finished_reason = saved[0]
        kv.mamba_last_track_seqlen, kv.mamba_prev_track_seqlen = saved[1:]


def presented_state(req: Any) -> SecondState | None:
    """The state that the tree is being shown in place of upstream's."""
    second: SecondState | None = getattr(req, _PRESENTED, None)
    return second


def free_with_request(
    original: Callable[..., None], pool: Any, req: Any, *args: Any, **options: Any
) -> None:
    """A request that ends, is aborted or retracted gives its second slot back too."""
    release(pool, req)
    original(pool, req, *args, **options)


FREE_SECOND = Hook(
    "second-state-free",
    "sglang.srt.mem_cache.memory_pool.HybridReqToTokenPool.free_mamba_cache",
    "around",
    free_with_request,
)
