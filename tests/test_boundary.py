"""Every prompt finds its anchor, and no state lies anywhere but under its key."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_qsa.boundary import (
    Grid,
    anchor,
    decode_depth,
    decode_interval,
    forward_end,
    may_publish,
    plan,
)
from sglang_qsa.errors import ConfigError
from tests.messages import assert_refusal

PAGE = 64
ONE, TWO = Grid(), Grid(snapshots=2)
STORE_CHUNKS = (64, 128, 192, 256, 512, 768, 1024)


@dataclass(frozen=True)
class Forward:
    """One forward of a request and what it publishes."""

    prefix_len: int
    end: int
    depths: tuple[int, ...]

    def within_reach(self, depth: int, *, exact_end: bool) -> bool:
        """What the kernels can hand out: chunk states, and perhaps the last one."""
        chunk_states = range(self.prefix_len + PAGE, self.end + 1, PAGE)
        return depth in chunk_states or (exact_end and depth == self.end)


def prefill(
    grid: Grid,
    prompt_len: int,
    *,
    hit_len: int = 0,
    budgets: Sequence[int] = (8192,),
    branch: int | None = None,
    may_split: bool = True,
) -> list[Forward]:
    """All forwards of one request, each as long as its budget and the planner say."""
    forwards: list[Forward] = []
    prefix_len = hit_len
    request: dict[str, Any] = {
        "prompt_len": prompt_len,
        "branch": branch,
        "hit_len": hit_len,
    }
    for budget in itertools.cycle(budgets):
        end = forward_end(
            grid,
            prefix_len=prefix_len,
            limit=prefix_len + budget,
            may_split=may_split,
            **request,
        )
        assert prefix_len < end <= prompt_len
        depths = plan(grid, prefix_len=prefix_len, end=end, **request)
        forwards.append(Forward(prefix_len, end, depths))
        if end == prompt_len:
            return forwards
        prefix_len = end
    raise AssertionError("unreachable")


def published(forwards: Sequence[Forward]) -> set[int]:
    return {depth for forward in forwards for depth in forward.depths}


def resumes_at(states: set[int], prompt_len: int) -> int:
    """Where a prompt over all `states` resumes: look-ups stop one token short."""
    return max((depth for depth in states if depth < prompt_len), default=0)


# -- strategies ------------------------------------------------------------------

grids = st.builds(
    Grid,
    store_tokens=st.sampled_from((0, *STORE_CHUNKS)),
    rung_distances=st.sampled_from(((), (1024,), (1024, 8192, 65_536), (640, 3000))),
    rung_min_tokens=st.sampled_from((64, 4096)),
    snapshots=st.integers(1, 3),
    exact_end=st.booleans(),
)
thorough = settings(max_examples=500)
budgets = st.lists(st.integers(1, 9000), min_size=1, max_size=4)
lengths = st.one_of(
    st.integers(1, 1100), st.integers(1, 10_000), st.integers(1, 200_000)
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A prompt, what of it is found, and where shared tokens end."""
    prompt_len = draw(lengths)
    pages = anchor(prompt_len, PAGE) // PAGE
    hit = draw(st.integers(0, pages))
    branch = draw(st.one_of(st.none(), st.integers(hit, pages)))
    return {
        "prompt_len": prompt_len,
        "hit_len": hit * PAGE,
        "branch": None if branch is None else branch * PAGE,
        # Enough of them that a long prompt takes few forwards.
        "budgets": [*draw(budgets), 16_384],
    }


# -- properties ------------------------------------------------------------------


@thorough
@given(grids, st.data())
def test_any_forward_plans_what_can_be_carried_and_named(
    grid: Grid, data: st.DataObject
) -> None:
    """Off-grid starts, ends and branches included: upstream may cut anywhere."""
    prompt_len = data.draw(lengths)
    prefix_len = data.draw(st.integers(0, prompt_len - 1))
    end = data.draw(st.integers(prefix_len + 1, prompt_len))
    branch = data.draw(st.one_of(st.none(), st.integers(0, prompt_len)))
    hit_len = data.draw(st.one_of(st.none(), st.integers(0, prefix_len)))
    depths = plan(
        grid,
        prefix_len=prefix_len,
        end=end,
        prompt_len=prompt_len,
        branch=branch,
        hit_len=hit_len,
    )
    assert len(depths) <= grid.snapshots
    assert len({depth // grid.store_grid for depth in depths}) == len(depths)
    forward = Forward(prefix_len, end, depths)
    for depth in depths:
        assert depth % PAGE == 0
        assert prefix_len < depth <= end
        assert forward.within_reach(depth, exact_end=grid.exact_end)
        assert may_publish(depth, depth, PAGE)


@thorough
@given(grids, requests(), st.booleans())
def test_chunks_stay_on_the_grid(
    grid: Grid, request: dict[str, Any], may_split: bool
) -> None:
    """And what a whole request publishes is on it, within reach and its own key."""
    forwards = prefill(grid, **request, may_split=may_split)
    ends = [forward.end for forward in forwards]
    assert [forward.prefix_len for forward in forwards] == [
        request["hit_len"],
        *ends[:-1],
    ]
    assert all(end % PAGE == 0 for end in ends[:-1])
    for forward, budget in zip(
        forwards, itertools.cycle(request["budgets"]), strict=False
    ):
        assert forward.end - forward.prefix_len <= max(budget, PAGE)
        for depth in forward.depths:
            assert forward.within_reach(depth, exact_end=False)
            key_len = min(depth, forward.end) // PAGE * PAGE  # as upstream makes it
            assert may_publish(depth, key_len, PAGE)


@thorough
@given(grids, requests(), st.booleans())
def test_every_prompt_has_its_anchor(
    grid: Grid, request: dict[str, Any], may_split: bool
) -> None:
    """On the store grid for every prompt longer than one store chunk; below that on
    the tree's grid, for every prompt of 65 tokens and more."""
    prompt_len = request["prompt_len"]
    states = published(prefill(grid, **request, may_split=may_split))
    states.add(request["hit_len"])
    if prompt_len > grid.store_grid:
        wanted = anchor(prompt_len, grid.store_grid)
        assert prompt_len - wanted <= grid.store_grid
        assert wanted in states or request["hit_len"] > wanted
    elif prompt_len > PAGE:
        assert anchor(prompt_len, PAGE) in states
    assert resumes_at(states, prompt_len) >= prompt_len - grid.store_grid


@thorough
@given(grids, requests())
def test_every_fork_has_its_state(grid: Grid, request: dict[str, Any]) -> None:
    """Together with the anchor, whatever one forward can carry."""
    states = published(prefill(grid, **request))
    fork = (request["branch"] or 0) // grid.store_grid * grid.store_grid
    if fork > request["hit_len"]:
        assert fork in states
        assert anchor(request["prompt_len"], grid.store_grid) in states


@thorough
@given(grids, requests())
def test_no_flood(grid: Grid, request: dict[str, Any]) -> None:
    """Anchor and branch on both grids, and the rungs: never one for each chunk."""
    states = published(prefill(grid, **request))
    assert len(states) <= 4 + len(grid.rung_distances)


@thorough
@given(grids, requests())
def test_rungs_save_enough(grid: Grid, request: dict[str, Any]) -> None:
    """Below the anchor and above what is known there is nothing but rungs."""
    states = published(prefill(grid, **request))
    known = max(request["hit_len"], request["branch"] or 0)
    prompt_anchor = anchor(request["prompt_len"], grid.store_grid)
    for rung in states:
        if known < rung < prompt_anchor:
            assert rung - known >= grid.rung_min_tokens
            assert rung % grid.store_grid == 0
            assert any(prompt_anchor - rung >= d for d in grid.rung_distances)


@thorough
@given(grids, requests())
def test_each_forward_that_splitting_adds_keeps_a_state(
    grid: Grid, request: dict[str, Any]
) -> None:
    request["budgets"] = [8192]
    split = prefill(grid, **request)
    whole = prefill(grid, **request, may_split=False)
    if grid.snapshots > 1:
        assert split == whole
    else:
        assert len(split) - len(whole) <= max(len(published(split)) - 1, 0)


@thorough
@given(requests(), st.sampled_from((0, *STORE_CHUNKS)))
def test_one_snapshot_a_forward_keeps_as_much_as_two(
    request: dict[str, Any], store_tokens: int
) -> None:
    """Of what a tier can keep, by more forwards."""
    request["budgets"] = [8192]
    one = published(prefill(Grid(store_tokens=store_tokens), **request))
    two = published(prefill(Grid(store_tokens=store_tokens, snapshots=2), **request))
    grid = store_tokens or PAGE
    assert {depth for depth in two if depth % grid == 0} <= one


@thorough
@given(grids, requests())
def test_a_resend_takes_no_lower_snapshot(grid: Grid, request: dict[str, Any]) -> None:
    """What a request found or published is not taken again by the next one."""
    prompt_len = request["prompt_len"]
    states = published(prefill(grid, **request)) | {request["hit_len"]}
    hit_len = resumes_at(states, prompt_len)
    again = published(prefill(grid, prompt_len, hit_len=hit_len))
    assert all(depth > hit_len for depth in again)
    if grid.store_grid == PAGE:
        assert again == set()


# -- rungs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_len", "hit_len", "expected"),
    [
        (5_000, 0, {4_992}),
        (6_208, 0, {6_144, 5_120}),
        (6_208, 2_048, {6_144}),
        (30_000, 0, {29_952, 28_672, 16_384}),
        (30_000, 16_384, {29_952, 28_672}),
        (250_000, 0, {249_984, 248_832, 237_568, 131_072}),
    ],
)
@pytest.mark.parametrize("budget", [512, 8192, 16_384])
@pytest.mark.parametrize("grid", [ONE, TWO], ids=["one", "two"])
def test_rungs_of_cold_prompts(
    grid: Grid, prompt_len: int, hit_len: int, expected: set[int], budget: int
) -> None:
    """The same depths however the prompt is cut."""
    forwards = prefill(grid, prompt_len, hit_len=hit_len, budgets=[budget])
    if budget < 16_384:
        assert published(forwards) == expected
    else:
        # Two rungs can fall into one forward, which drops the lower.
        assert published(forwards) <= expected
        assert len(published(forwards)) >= min(len(expected), 2)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [(20_480, {20_480, 24_960}), (19_456, {19_456, 23_552, 24_960})],
)
def test_rungs_above_a_branch(branch: int, expected: set[int]) -> None:
    """It saves what they would, up to where it lies."""
    assert published(prefill(ONE, 25_000, branch=branch)) == expected


def test_second_prompt_of_a_document_resumes_at_a_rung() -> None:
    """The third at the branch that the second left."""
    document = 30_000
    first = published(prefill(TWO, document + 200))
    hit_len = resumes_at(first, document)
    assert hit_len == 28_672
    second = published(prefill(TWO, document + 90, hit_len=hit_len, branch=29_952))
    assert resumes_at(first | second, document) == 29_952


def test_prompts_of_one_document_share_their_rungs() -> None:
    assert (
        len({min(published(prefill(TWO, 20_000 + n))) for n in range(0, 300, 7)}) == 1
    )


# -- cases -----------------------------------------------------------------------


@pytest.mark.parametrize("snapshots", [1, 2])
@pytest.mark.parametrize(
    ("prompt_len", "wanted"), [(768, 512), (1000, 768), (1050, 1024), (200, 192)]
)
def test_case_11_anchor_on_the_store_chunk(
    prompt_len: int, wanted: int, snapshots: int
) -> None:
    """The device keeps no second state for the rest of a chunk."""
    grid = Grid(store_tokens=256, snapshots=snapshots)
    assert published(prefill(grid, prompt_len)) == {wanted}


def test_case_11_next_turn() -> None:
    grid = Grid(store_tokens=256)
    first = published(prefill(grid, 1000))
    assert resumes_at(first, 1300) == 768
    second = published(prefill(grid, 1300, hit_len=768, branch=960))
    assert resumes_at(first | second, 1300) == 1280


@pytest.mark.parametrize("grid", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("prompt_len", [384, 448, 512, 1024])
def test_case_21_exact_multiples(grid: Grid, prompt_len: int) -> None:
    states = published(prefill(grid, prompt_len))
    assert resumes_at(states, prompt_len) == prompt_len - 64


@pytest.mark.parametrize("budget", [64, 256, 500, 8192])
def test_case_21_resend_and_next_turn_of_every_length(budget: int) -> None:
    for prompt_len in range(65, 1101):
        states = published(prefill(ONE, prompt_len, budgets=[budget]))
        hit_len = resumes_at(states, prompt_len)
        assert hit_len >= prompt_len - 64
        turn = prompt_len + 300
        states |= published(prefill(ONE, turn, hit_len=hit_len, budgets=[budget]))
        assert resumes_at(states, turn) >= turn - 64


@pytest.mark.parametrize("new_tokens", range(1, 64))
def test_case_21_short_follow_up(new_tokens: int) -> None:
    """Fewer new tokens than a page still move the anchor where a page fills."""
    states = published(prefill(ONE, 1000))
    turn = 1000 + new_tokens
    forwards = prefill(ONE, turn, hit_len=resumes_at(states, turn))
    assert resumes_at(states | published(forwards), turn) == anchor(turn, 64)


@pytest.mark.parametrize("exact_end", [False, True])
@pytest.mark.parametrize("prompt_len", [24_500, 40_000])
@pytest.mark.parametrize("branch", [None, 20_480])
def test_case_22_unaligned_continuation(
    exact_end: bool, prompt_len: int, branch: int | None
) -> None:
    prefix_len, end = 16_379, 24_500
    assert prefix_len + (end - prefix_len) // 64 * 64 == 24_443, "what stock takes"
    facts = {"prefix_len": prefix_len, "end": end, "prompt_len": prompt_len}
    grid = Grid(snapshots=2, exact_end=exact_end)
    assert plan(grid, **facts, branch=branch) == ()
    assert not may_publish(24_443, 24_384, PAGE)
    assert not may_publish(24_443, 24_443, PAGE)
    assert may_publish(24_384, 24_384, PAGE)


def test_case_22_end_on_the_grid() -> None:
    """An off-grid start reaches its end alone, where the end can be carried."""
    facts = {"prefix_len": 16_379, "end": 24_448, "prompt_len": 24_500}
    assert plan(Grid(), **facts) == ()
    assert plan(Grid(exact_end=True), **facts) == (24_448,)


def test_case_22_the_next_cut_is_on_the_grid_again() -> None:
    """After a cut that upstream made: the anchor of the prompt is not lost."""
    forwards = prefill(ONE, 40_000, hit_len=16_379)
    assert forwards[0].end == 24_512
    assert anchor(40_000, 64) in published(forwards)


def test_case_23_branch_and_anchor_in_one_forward() -> None:
    facts = {"prefix_len": 1024, "prompt_len": 5000, "branch": 3072}
    assert plan(TWO, **facts, end=5000) == (4992, 3072)
    assert plan(ONE, **facts, end=5000) == (4992,), "one alone: the anchor"


@pytest.mark.parametrize("grid", [ONE, TWO], ids=["one", "two"])
def test_case_23_branch_and_anchor_survive(grid: Grid) -> None:
    forwards = prefill(grid, 5000, hit_len=1024, branch=3072)
    assert published(forwards) == {3072, 4992}
    assert len(forwards) == (2 if grid is ONE else 1)


def test_case_23_may_not_be_split() -> None:
    forwards = prefill(ONE, 5000, hit_len=1024, branch=3072, may_split=False)
    assert [(f.end, f.depths) for f in forwards] == [(5000, (4992,))]


# -- decoding --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store_tokens", "track_interval", "expected"),
    [(0, 1, 64), (0, 256, 256), (256, 64, 256), (192, 256, 768), (0, 96, 192)],
)
def test_interval_of_decoding(
    store_tokens: int, track_interval: int, expected: int
) -> None:
    assert decode_interval(Grid(store_tokens=store_tokens), track_interval) == expected


@given(
    st.integers(0, 5000),
    st.lists(st.integers(1, 4), min_size=1, max_size=600),
    st.sampled_from((64, 256, 768)),
)
def test_decoding_passes_no_boundary_unseen(
    start: int, accepted: list[int], interval: int
) -> None:
    """One token a step, or as many as a verify step accepts."""
    steps = list(itertools.accumulate(accepted, initial=start))
    depths = [
        depth
        for before, after in itertools.pairwise(steps)
        if (depth := decode_depth(interval, before, after)) is not None
    ]
    boundaries = range(start // interval * interval + interval, steps[-1] + 1, interval)
    assert depths == list(boundaries)


def test_a_step_over_several_boundaries_takes_the_last() -> None:
    assert decode_depth(64, 60, 200) == 192
    assert decode_depth(64, 64, 127) is None
    assert decode_depth(64, 127, 128) == 128


# -- the grid itself -------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "key_len", "expected"),
    [
        (128, 128, True),
        (0, 0, False),
        (128, 64, False),
        (64, 128, False),
        (96, 96, False),
        (-64, -64, False),
    ],
)
def test_publish_guard(depth: int, key_len: int, expected: bool) -> None:
    assert may_publish(depth, key_len, PAGE) is expected


def test_wider_kernel_chunk() -> None:
    """The grid is what tree and kernel have in common."""
    grid = Grid(kernel_tokens=128)
    assert grid.tree_grid == grid.store_grid == 128
    assert published(prefill(grid, 1000)) == {896}


def test_wider_page() -> None:
    grid = Grid(page_tokens=256)
    assert published(prefill(grid, 1000)) == {768}
    assert plan(grid, prefix_len=64, end=1000, prompt_len=1000) == (768,)


@pytest.mark.parametrize("prompt_len", [0, 1, 64])
def test_no_anchor_within_the_first_page(prompt_len: int) -> None:
    assert anchor(prompt_len, PAGE) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_tokens", 0),
        ("kernel_tokens", 0),
        ("snapshots", 0),
        ("rung_min_tokens", 0),
        ("store_tokens", 100),
        ("store_tokens", -64),
        ("rung_distances", (1024, 0)),
    ],
)
def test_impossible_grids_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Grid(**{name: value})
    assert_refusal(caught.value, origin=name)
