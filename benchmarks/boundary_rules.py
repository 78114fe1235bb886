"""The checkpoint rules that `benchmarks.boundaries` compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sglang_qsa.boundary import Grid, decode_interval, floor, forward_end, plan
from sglang_qsa.geometry import PAGE_TOKENS

KERNEL_TOKENS = 64
STOCK_TRACK_INTERVAL = 256
IDEAL, STOCK, OURS = "ideal", "stock", "ours"


@dataclass(frozen=True, slots=True)
class Forward:
    """One prefill forward, as far as it is known when its end is chosen."""

    prefix_len: int
    limit: int
    """Where it ends if its budget alone decides."""
    prompt_len: int
    branch: int | None
    hit_len: int


class Rule(Protocol):
    """Where a forward ends, and which `(depth, key)` pairs it publishes."""

    name: str
    decode_interval: int
    store_grid: int

    def end(self, forward: Forward) -> int: ...

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]: ...


class Ideal:
    """A checkpoint at every page, as if checkpoints were free."""

    name = IDEAL
    decode_interval = PAGE_TOKENS
    store_grid = PAGE_TOKENS

    def end(self, forward: Forward) -> int:
        return min(floor(forward.limit, PAGE_TOKENS), forward.prompt_len)

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        first = floor(forward.prefix_len, PAGE_TOKENS) + PAGE_TOKENS
        return ((depth, depth) for depth in range(first, end + 1, PAGE_TOKENS))


class Stock:
    """SGLang 0.5.23 without DCP.

    Source: `PrefillAdder._select_prefill_admission` and `.add_chunked_req`,
    `ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend` and
    `UnifiedRadixCache.checkpoint_into_tree`.
    """

    name = STOCK
    decode_interval = STOCK_TRACK_INTERVAL
    store_grid = PAGE_TOKENS

    def end(self, forward: Forward) -> int:
        is_first = forward.prefix_len == forward.hit_len
        cut = floor(forward.limit, PAGE_TOKENS) if is_first else forward.limit
        return forward.prompt_len if forward.limit >= forward.prompt_len else cut

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        prefix_len, branch = forward.prefix_len, forward.branch
        if end - prefix_len < KERNEL_TOKENS:
            return
        depth = prefix_len + floor(end - prefix_len, KERNEL_TOKENS)
        in_reach = branch is not None and (branch - prefix_len) % KERNEL_TOKENS == 0
        if branch is not None and in_reach and prefix_len < branch < end:
            depth = branch
        yield depth, floor(depth, PAGE_TOKENS)


class Ours:
    """The planner."""

    def __init__(
        self,
        name: str,
        grid: Grid,
        *,
        track_interval: int = 1,
        may_split: bool = True,
    ) -> None:
        self.name = name
        self.decode_interval = decode_interval(grid, track_interval)
        self.store_grid = grid.store_grid
        self._grid = grid
        self._may_split = may_split

    def end(self, forward: Forward) -> int:
        return forward_end(
            self._grid,
            prefix_len=forward.prefix_len,
            limit=forward.limit,
            prompt_len=forward.prompt_len,
            branch=forward.branch,
            hit_len=forward.hit_len,
            may_split=self._may_split,
        )

    def published(self, forward: Forward, end: int) -> Iterable[tuple[int, int]]:
        depths = plan(
            self._grid,
            prefix_len=forward.prefix_len,
            end=end,
            prompt_len=forward.prompt_len,
            branch=forward.branch,
            hit_len=forward.hit_len,
        )
        return [(depth, depth) for depth in depths]


def compared_rules() -> list[Rule]:
    """Ideal, stock and ours; then what single parts of ours are worth."""
    two, one = Grid(snapshots=2), Grid()
    return [
        Ideal(),
        Stock(),
        Ours(OURS, two),
        Ours("ours, one state a forward", one),
        Ours("ours, one state, never split", one, may_split=False),
        Ours("ours without rungs", Grid(snapshots=2, rung_distances=())),
        Ours("ours, decode every 256", two, track_interval=STOCK_TRACK_INTERVAL),
        Ours("ours, store chunk 256", Grid(snapshots=2, store_tokens=256)),
    ]
