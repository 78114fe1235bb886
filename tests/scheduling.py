"""SGLang's real admission, snapshot planning and prefix tree, with no model behind.

A state is a number here: the depth it was taken at, which a kernel would compute.
What the tree then serves tells whether a state lies under its own key.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from sglang_qsa.boundary import Grid, decode_interval
from sglang_qsa.hooks import active
from sglang_qsa.hooks.active import CheckpointRule
from sglang_qsa.hooks.second import Part, held
from tests.pools import PAGE_TOKENS, Pools, build_pools

PAGES, SLOTS, CONTEXT_TOKENS = 1024, 48, 24_576
SLOTS_PER_REQUEST = 3
"""Its own and two for snapshots."""


@contextmanager
def following(grid: Grid) -> Iterator[None]:
    """Let the hooks follow the planner on `grid`."""
    active.use(CheckpointRule(grid, decode_interval(grid)))
    try:
        yield
    finally:
        active.use(None)


@dataclass(frozen=True, slots=True)
class Forward:
    """One prefill forward of one request, and the depth its snapshot stands for."""

    start: int
    end: int
    depth: int | None
    second: int | None = None


@dataclass(slots=True)
class Scheduling:
    """One server's scheduler side. Requests run one after the other."""

    chunk_tokens: int = 8192
    budgets: Sequence[int] = ()
    """Memory that continuations see, in turn; endless without."""
    pools: Pools = field(
        default_factory=lambda: build_pools(
            pages=PAGES, slots=SLOTS, context_tokens=CONTEXT_TOKENS
        )
    )
    tree: Any = None
    """The class of the tree, if not upstream's own."""
    parts: Collection[Part] = tuple(Part)
    """What a forward fills of a second state."""
    params: Any = field(init=False)
    cache: Any = field(init=False)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.pools.requests,
            token_to_kv_pool_allocator=self.pools.allocator,
            page_size=PAGE_TOKENS,
            enable_mamba_extra_buffer=True,
            tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        )
        self.cache = (self.tree or UnifiedRadixCache)(self.params)

    def found(self, tokens: Sequence[int]) -> tuple[int, int]:
        """How long a prefix a request would find, and the depth of its state."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        key = RadixKey(array("q", tokens[:-1]), None).page_aligned(PAGE_TOKENS)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        slot = self.cache.tree_core.get_component_device_value(
            match.best_match_node, ComponentType.MAMBA
        )
        depth = 0 if slot is None else int(self._states()[int(slot)])
        return int(match.device_prefix_len), depth

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        ends_at_once: bool = False,
        kept: bool = True,
        session_id: str | None = None,
    ) -> list[Forward]:
        """Run one request to its last prompt token, release it, return its forwards.

        Args:
            ends_at_once: its first token is its last, so that it is published once.
            kept: False for a request that is aborted after its last forward.
        """
        running = Running(self, self._request(tokens, session_id))
        for budget in itertools.cycle(self.budgets or (None,)):
            running.forward(budget)
            if running.is_prefilled:
                break
            running.publish()
        if kept and not ends_at_once:
            running.publish()
        running.end(kept=kept)
        return running.forwards

    def start(self, tokens: Sequence[int]) -> Running:
        """A request after its first forward, to be published and ended later."""
        running = Running(self, self._request(tokens))
        running.forward(None)
        return running

    def evict_states(self) -> None:
        """Take every state that no request holds out of the tree."""
        self.cache.evict_for_alloc(_eviction(mamba_num=SLOTS))

    def _request(self, tokens: Sequence[int], session_id: str | None = None) -> Any:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        req = Req(
            rid=f"request-{next(self._names)}",
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=SamplingParams(max_new_tokens=1),
            session_id=session_id,
        )
        req.init_next_round_input(self.cache)
        return req

    def admit(self, req: Any, budget: int | None, *, first: bool) -> None:
        """As the scheduler does with one request and endless memory, or `budget`."""
        from sglang.srt.managers.schedule_policy import PrefillAdder

        adder = PrefillAdder(
            PAGE_TOKENS,
            self.cache,
            self.pools.allocator,
            None,
            1.0,
            1 << 20,
            self.chunk_tokens,
        )
        if first:
            adder.add_one_req(req, False, None)
        else:
            if budget is not None:
                available = adder.memory_budget._available_and_evictable()
                adder.memory_budget.total_offset = available - budget
            req.init_next_round_input()
            adder.add_chunked_req(req)
        assert adder.can_run_list == [req]

    def allocate(self, req: Any) -> None:
        """The request's slots, and pages for its whole prompt at once."""
        short = SLOTS_PER_REQUEST - self.pools.requests.mamba_allocator.available_size()
        if short > 0:
            self.cache.evict_for_alloc(_eviction(mamba_num=short))
        self.pools.requests.alloc([req])
        start, end = req.prefix_len, len(req.full_untruncated_fill_ids)
        pages = -(-(end - start) // PAGE_TOKENS)
        rows = self.pools.allocator.alloc(pages * PAGE_TOKENS)
        if rows is None:
            self.cache.evict_for_alloc(_eviction(num_tokens=pages * PAGE_TOKENS))
            rows = self.pools.allocator.alloc(pages * PAGE_TOKENS)
        table = self.pools.requests.req_to_token[req.kv.req_pool_idx]
        table[:start] = self.cache.path_device_indices(req.last_node)
        table[start:end] = rows[: end - start].to(table.dtype)

    def forward(self, req: Any) -> Forward:
        """Plan the snapshot and write what the kernels would, where they would."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        batch = SimpleNamespace(
            reqs=[req],
            tree_cache=self.cache,
            req_to_token_pool=self.pools.requests,
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
        )
        entry = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
        depth = None
        if entry.track_mask:
            # As `_init_track_ssm_indices` reads it: on a chunk of 64 the state at the
            # end, else that of the chunk before.
            length = entry.track_seqlen - req.prefix_len
            whole = length - length % PAGE_TOKENS
            depth = req.extend_end if whole == length else req.prefix_len + whole
            slot = req.kv.mamba_ping_pong_track_buffer[entry.track_position]
            self._states()[int(slot)] = depth
        second = held(req)
        if second is not None:
            self._states()[int(second.slot)] = second.depth
            second.filled.update(self.parts)
        other = None if second is None else second.depth
        return Forward(req.prefix_len, req.extend_end, depth, other)

    def _states(self) -> torch.Tensor:
        """One number per slot, inside the real state pool."""
        temporal: torch.Tensor = self.pools.requests.mamba_pool.mamba_cache.temporal
        return temporal[0].flatten(1)[:, 0]


@dataclass(slots=True)
class Running:
    """One request on its way through a `Scheduling`."""

    server: Scheduling
    req: Any
    forwards: list[Forward] = field(default_factory=list)

    @property
    def is_prefilled(self) -> bool:
        return bool(self.req.extend_end == len(self.req.origin_input_ids))

    def forward(self, budget: int | None) -> None:
        self.server.admit(self.req, budget, first=not self.forwards)
        if not self.forwards:
            self.server.allocate(self.req)
        kv = self.req.kv
        kv.kv_committed_len = kv.kv_allocated_len = self.req.extend_end
        self.forwards.append(self.server.forward(self.req))

    def publish(self) -> None:
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        checkpoint_kv_cache(self.req, self.server.cache)

    def end(self, *, kept: bool = True) -> None:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        self.req.finished_reason = FINISH_LENGTH(0)
        release_kv_cache(self.req, self.server.cache, checkpoint=kept)


def _eviction(*, num_tokens: int = 0, mamba_num: int = 0) -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    return EvictParams(num_tokens=num_tokens, mamba_num=mamba_num)
