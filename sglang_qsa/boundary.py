"""Which token boundaries a forward should snapshot. Pure: standard library only.

A state is worth keeping where a later prompt can resume, and a tree or a tier can
only name multiples of its page or chunk. Every depth here is therefore such a
multiple, counted from token 0 of the prompt and never from where a forward starts.

Wanted are, best first:

* the *anchor*: the highest grid point strictly below the last prompt token, for a
  resend and the next turn;
* the *branch*: where the prompt leaves cached tokens that carry no state, which is the
  end of a prefix that two prompts have shared;
* a few *rungs* at growing distances below the anchor of a prompt with much new text,
  for the first prompt that shares most of it and not all. The distances grow by
  factors, so a prompt of any length has no more of them; from the second such prompt
  on the branch is in their place.

Anchor and branch lie on the store grid where a tier has one: a tier can keep no other
depth, and the device loses less than one step of it. What that step holds, branch and
anchor on the tree's own grid, comes last. A prompt that does not fill one step has its
anchor on the tree's grid, for the device alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm

from sglang_qsa.errors import ConfigError, refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where checkpoints may lie, and what one forward of this server can carry."""

    page_tokens: int = 64
    """Page of the device tree: it names prefixes by multiples of this."""

    kernel_tokens: int = 64
    """A forward holds its state at every multiple of this from its own start."""

    store_tokens: int = 0
    """Chunk of the external tier; 0 without one."""

    rung_distances: tuple[int, ...] = (1024, 8192, 65_536)
    """Tokens from the anchor down to the rungs, at least. A rung lies on a multiple of
    its distance (or just below, on the store grid), so that prompts share it."""

    rung_min_tokens: int = 4096
    """New tokens that a rung must save whoever resumes there: about as many as the
    bytes of one checkpoint would hold in pages."""

    snapshots: int = 1
    """How many depths one forward can snapshot; 1 in sglang 0.5.23, and one more
    where `hooks.second_forward` can fill it."""

    exact_end: bool = False
    """A forward can also snapshot its own end where that is no multiple of
    `kernel_tokens` from its start. Not so in sglang 0.5.23: the SSM state would be
    that of the end, conv and PLE windows those of the kernel chunk before."""

    tree_grid: int = field(init=False)
    store_grid: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("page_tokens", "kernel_tokens", "snapshots", "rung_min_tokens"):
            value = getattr(self, name)
            _require(value > 0, name, value, "at least 1")
        tree_grid = lcm(self.page_tokens, self.kernel_tokens)
        store = self.store_tokens
        wanted = f"0 or a multiple of {tree_grid}"
        _require(store >= 0 == store % tree_grid, "store_tokens", store, wanted)
        nearest = min(self.rung_distances, default=1)
        _require(nearest > 0, "rung_distances", nearest, "at least 1 each")
        object.__setattr__(self, "tree_grid", tree_grid)
        object.__setattr__(self, "store_grid", store or tree_grid)


def _require(holds: bool, name: str, found: int, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            refusal(
                found=str(found),
                wanted=wanted,
                origin=f"checkpoint grid, {name}",
                way_out="correct the flag, or the chunk size of the tier",
            )
        )


def floor(tokens: int, grid_tokens: int) -> int:
    """The highest multiple of `grid_tokens` that is not above `tokens`."""
    return tokens // grid_tokens * grid_tokens


def anchor(prompt_len: int, grid_tokens: int) -> int:
    """The highest multiple strictly below the last prompt token; 0 if there is none.

    Look-ups stop one token short of the prompt (sglang 0.5.23,
    `Req._compute_max_prefix_len`), so nothing resumes at the end of the same prompt.
    """
    return floor(max(prompt_len - 1, 0), grid_tokens)


def plan(
    grid: Grid,
    *,
    prefix_len: int,
    end: int,
    prompt_len: int,
    branch: int | None = None,
    hit_len: int | None = None,
) -> tuple[int, ...]:
    """The depths that the forward over tokens `[prefix_len, end)` snapshots.

    Whether it is the last chunk does not matter: an anchor that the last chunk cannot
    reach, because it starts there, lies in the chunk before and is taken by that one.

    Args:
        prefix_len: tokens before this forward, found or computed.
        end: tokens after it; at most `prompt_len`.
        prompt_len: tokens to prefill in all, after a retraction with earlier output.
        branch: how far cached tokens without a state reach, if any do.
        hit_len: tokens found before the first forward of this request; `None` takes
            `prefix_len`, which costs a prompt in small chunks its rungs.

    Returns:
        At most `grid.snapshots` depths, best first: each in `(prefix_len, end]`, on
        the tree's grid and within reach of the kernels, in different steps of the
        store grid: what a step holds is not worth a second state. Empty where nothing
        wanted is within reach, as in a forward that starts off the grid.
    """
    wanted = _wanted(
        grid, prompt_len, branch, prefix_len if hit_len is None else hit_len
    )
    by_step: dict[int, int] = {}
    for depth in _reached(grid, wanted, prefix_len, end):
        by_step.setdefault(depth // grid.store_grid, depth)
    return tuple(by_step.values())[: grid.snapshots]


def _wanted(
    grid: Grid, prompt_len: int, branch: int | None, hit_len: int
) -> dict[int, None]:
    """All depths of a request that are worth a snapshot, best first, each once."""
    tree_anchor = anchor(prompt_len, grid.tree_grid)
    prompt_anchor = anchor(prompt_len, grid.store_grid) or tree_anchor
    fork = branch or 0
    lowest_rung = max(hit_len, fork) + grid.rung_min_tokens
    rungs = [
        rung
        for distance in grid.rung_distances
        if (rung := _rung(prompt_anchor, distance, grid.store_grid)) >= lowest_rung
    ]
    return dict.fromkeys(
        (
            prompt_anchor,
            floor(fork, grid.store_grid),
            *rungs,
            floor(fork, grid.tree_grid),
            tree_anchor,
        )
    )


def _rung(prompt_anchor: int, distance: int, store_grid: int) -> int:
    return floor(floor(prompt_anchor - distance, distance), store_grid)


def _reached(
    grid: Grid, wanted: dict[int, None], prefix_len: int, end: int
) -> list[int]:
    return [
        depth
        for depth in wanted
        if prefix_len < depth <= end
        and (
            (depth - prefix_len) % grid.kernel_tokens == 0
            or (grid.exact_end and depth == end)
        )
    ]


def forward_end(
    grid: Grid,
    *,
    prefix_len: int,
    limit: int,
    prompt_len: int,
    branch: int | None = None,
    hit_len: int | None = None,
    may_split: bool = True,
) -> int:
    """Where a forward that may run up to `limit` should end.

    A cut lies on the tree's grid, so that the next forward starts there and can reach
    every later boundary. It makes progress even where the budget holds less than a
    page: up to the next boundary, in a page that is allocated whole anyway.

    Where a forward carries one snapshot and would hold several of anchor, branch and
    rungs, it ends at the lowest and the next one takes the next. Otherwise the anchor
    would win in each prompt after a fork, and each would compute the shared prefix
    again. A request is split in this way once: what it left is found from then on.

    Args:
        limit: tokens after the forward if its budget alone decides.
        may_split: whether a request whose rest fits the budget may be continued in a
            second forward; the other arguments are those of `plan`.

    Returns:
        More than `prefix_len`, at most `prompt_len`.
    """
    end = min(limit, prompt_len)
    if end < prompt_len:
        next_boundary = floor(prefix_len, grid.tree_grid) + grid.tree_grid
        end = min(max(floor(end, grid.tree_grid), next_boundary), prompt_len)
    if grid.snapshots > 1 or not may_split:
        return end
    wanted = _wanted(
        grid, prompt_len, branch, prefix_len if hit_len is None else hit_len
    )
    reached = _reached(grid, wanted, prefix_len, end)
    kept_by_all = [depth for depth in reached if depth % grid.store_grid == 0]
    return min(kept_by_all) if len(kept_by_all) > 1 else end


def decode_interval(grid: Grid, track_interval: int = 1) -> int:
    """Tokens between two snapshots while decoding, counted from token 0.

    A snapshot overwrites the one before it and the last one alone is published, so a
    fine interval costs device copies and no memory: the grid itself is best.

    Args:
        track_interval: what the server was asked for; 1 for the grid itself.
    """
    return lcm(grid.tree_grid, grid.store_grid, track_interval)


def decode_depth(interval_tokens: int, before: int, after: int) -> int | None:
    """The depth to snapshot in a step that takes a request from `before` to `after`.

    A verify step may accept several tokens: the highest boundary it passes counts.
    """
    depth = floor(after, interval_tokens)
    return depth if depth > before else None


def may_publish(depth: int, key_len: int, page_tokens: int) -> bool:
    """Whether a state taken at `depth` may be found under a key of `key_len` tokens."""
    return 0 < depth == key_len and depth % page_tokens == 0
