"""Checkpoints lie where the planner wants them, in SGLang's own scheduler and tree."""

from __future__ import annotations

import pkgutil
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa.boundary import Grid, anchor, decode_depth, decode_interval
from sglang_qsa.hooks.chunks import CUT_NEXT_CHUNK, WHOLE_PAGES
from sglang_qsa.hooks.snapshot import SNAPSHOT
from tests.pools import PAGE_TOKENS
from tests.scheduling import SLOTS, Forward, Scheduling, following

pytestmark = pytest.mark.usefixtures("applied")


def text(tokens: int, seed: int = 0) -> list[int]:
    """A prompt that starts like no other of another seed."""
    source = random.Random(f"{seed}")
    return [source.randrange(1 << 20) for _ in range(tokens)]


def depths(forwards: Sequence[Forward]) -> list[int | None]:
    return [forward.depth for forward in forwards]


def assert_found(server: Scheduling, tokens: Sequence[int], wanted: int) -> None:
    assert server.found(tokens) == (wanted, wanted), "tokens, and depth of the state"


def assert_found_at_least(
    server: Scheduling, tokens: Sequence[int], wanted: int
) -> None:
    found, depth = server.found(tokens)
    assert found == depth >= wanted


@pytest.fixture(params=[0, 64, 128, 256], ids=lambda chunk: f"store {chunk}")
def grid(request: pytest.FixtureRequest) -> Iterator[Grid]:
    grid = Grid(store_tokens=request.param)
    with following(grid):
        yield grid


# -- CASES 21: resend and next turn ------------------------------------------------


@pytest.mark.parametrize("length", [384, 448, 512, 1024])
def test_case_21_exact_multiples(length: int) -> None:
    server = Scheduling()
    with following(Grid()):
        server.prefill(text(length))
    assert_found(server, text(length), length - PAGE_TOKENS)


@pytest.mark.parametrize("length", [384, 448, 512, 1024])
def test_case_21_in_stock(length: int) -> None:
    """The harness shows what a running stock server does (and notices its end)."""
    server = Scheduling()
    server.prefill(text(length))
    assert_found(server, text(length), 0)


@pytest.mark.parametrize("chunk_tokens", [64, 512, 8192])
def test_resend_and_next_turn(grid: Grid, chunk_tokens: int) -> None:
    """Whatever the chunk; the next turn adds less than a page, one, and several."""
    server = Scheduling(chunk_tokens=chunk_tokens)
    for seed, length in enumerate((65, 127, 128, 129, 700, 960, 1024, 1025)):
        prompt = text(length, seed)
        server.prefill(prompt)
        wanted = anchor(length, grid.store_grid) or anchor(length, PAGE_TOKENS)
        assert_found_at_least(server, prompt, wanted)
        for more in (20, 64, 300):
            turn = prompt + text(more, 1000 + more)
            server.prefill(turn)
            wanted = anchor(length + more, grid.store_grid) or wanted
            assert_found_at_least(server, turn, wanted)


def test_every_state_lies_under_its_own_key(grid: Grid) -> None:
    """Prompts that share beginnings, at random, with little room."""
    source = random.Random(11)
    server = Scheduling(chunk_tokens=256)
    sent: list[list[int]] = [[]]
    for seed in range(60):
        kept = source.choice(sent)
        prompt = kept[: source.randrange(len(kept) + 1)]
        prompt = prompt + text(source.randrange(1, 700), seed)
        forwards = server.prefill(prompt)
        sent.append(prompt)
        for forward in forwards:
            assert forward.depth is None or forward.depth % PAGE_TOKENS == 0
        for other in sent[1:]:
            tokens, depth = server.found(other)
            assert tokens == depth


# -- CASES 22: continuations -------------------------------------------------------

TIGHT = (4075, 3000, 37, 700)
"""Memory budgets off the grid, one of them below a page."""


def test_case_22_unaligned_continuation() -> None:
    server = Scheduling(chunk_tokens=8192, budgets=TIGHT)
    prompt = text(20_000)
    with following(Grid()):
        forwards = server.prefill(prompt)
    assert [forward.end % PAGE_TOKENS for forward in forwards[:-1]] == [
        0 for _ in forwards[:-1]
    ]
    assert len(forwards) > 3
    assert_found(server, prompt, anchor(20_000, PAGE_TOKENS))


def test_case_22_in_stock() -> None:
    """A state ahead of its key, which a resend would take for the key's."""
    server = Scheduling(chunk_tokens=8192, budgets=TIGHT)
    prompt = text(20_000)
    forwards = server.prefill(prompt)
    assert any(forward.start % PAGE_TOKENS for forward in forwards)
    tokens, depth = server.found(prompt)
    assert 0 < tokens < depth


def test_case_22_guard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the cuts not on the grid, nothing wrong would be published."""
    for hook in (SNAPSHOT, CUT_NEXT_CHUNK, WHOLE_PAGES):
        path, _, name = hook.target.rpartition(".")
        owner = pkgutil.resolve_name(path)
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)
    server = Scheduling(chunk_tokens=8192, budgets=(4075, 3001))
    prompt = text(20_000)
    with following(Grid()):
        forwards = server.prefill(prompt)
    assert any((forward.depth or 0) % PAGE_TOKENS for forward in forwards)
    tokens, depth = server.found(prompt)
    assert tokens == depth
    server.evict_states()
    assert server.pools.requests.mamba_allocator.available_size() == SLOTS


# -- CASES 23 and 11 ---------------------------------------------------------------


def test_case_23_branch_and_anchor_survive() -> None:
    server = Scheduling()
    first, second = text(4000), text(5000, 1)
    shared = first[:3072]
    with following(Grid()):
        server.prefill(first)
        forwards = server.prefill(shared + second[:1928])
    assert depths(forwards) == [3072, 4992]
    assert_found(server, shared + text(100, 2), 3072)
    assert_found(server, shared + second[:1928], 4992)


def test_case_23_in_stock() -> None:
    server = Scheduling()
    first, second = text(4000), text(5000, 1)
    shared = first[:3072]
    server.prefill(first)
    assert depths(server.prefill(shared + second[:1928])) == [3072]
    assert_found(server, shared + second[:1928], 3072)


@pytest.mark.parametrize(("length", "wanted"), [(768, 512), (1000, 768), (1050, 1024)])
def test_case_11_anchor_on_the_store_chunk(length: int, wanted: int) -> None:
    server = Scheduling()
    with following(Grid(store_tokens=256)):
        server.prefill(text(length))
    assert_found(server, text(length), wanted)


def test_middle_chunks_keep_no_state() -> None:
    """Stock keeps one of each chunk, at the price of 4,563 tokens."""
    server = Scheduling(chunk_tokens=512)
    with following(Grid()):
        forwards = server.prefill(text(3000))
    assert [depth for depth in depths(forwards) if depth is not None] == [2944]
    assert len(forwards) == 6


@pytest.mark.parametrize("chunk_tokens", [512, 8192])
def test_rungs_whatever_the_chunk(chunk_tokens: int) -> None:
    """What a rung saves is counted from where the request began, not its chunk; a
    continuation that holds a rung and the anchor ends at the rung."""
    server = Scheduling(chunk_tokens=chunk_tokens)
    with following(Grid()):
        forwards = server.prefill(text(20_000))
    found = [depth for depth in depths(forwards) if depth is not None]
    assert found == [8192, 18_432, 19_968]


# -- one unfinished request at a time ----------------------------------------------


def admit_two(first: Sequence[int], second: Sequence[int], server: Scheduling) -> Any:
    from sglang.srt.managers.schedule_policy import PrefillAdder

    adder = PrefillAdder(
        PAGE_TOKENS, server.cache, server.pools.allocator, None, 1.0, 1 << 20, 8192
    )
    verdicts = []
    for tokens in (first, second):
        req = server._request(tokens)
        verdicts.append(adder.add_one_req(req, False, None))
    return adder, verdicts


def test_second_request_is_not_split_beside_a_split_one() -> None:
    server = Scheduling()
    with following(Grid()):
        server.prefill(text(2000))
        shared = text(2000)[:1024]
        adder, _ = admit_two(shared + text(900, 1), shared + text(900, 2), server)
    first, second = adder.can_run_list
    assert (first.extend_end, second.extend_end) == (1024, 1924)
    assert adder.new_chunked_req is first


def test_request_that_would_be_cut_waits_beside_a_split_one() -> None:
    """Upstream tracks one unfinished request and would forget the first."""
    from sglang.srt.managers.schedule_policy import AddReqResult

    server = Scheduling()
    with following(Grid()):
        server.prefill(text(2000))
        shared = text(2000)[:1024]
        adder, verdicts = admit_two(shared + text(900, 1), text(9000, 2), server)
    (first,) = adder.can_run_list
    assert adder.new_chunked_req is first
    assert verdicts[1] is AddReqResult.OTHER


def test_nothing_is_split_where_chunked_prefill_is_off() -> None:
    from sglang.srt.managers.schedule_policy import PrefillAdder

    server = Scheduling()
    with following(Grid()):
        server.prefill(text(2000))
        adder = PrefillAdder(
            PAGE_TOKENS, server.cache, server.pools.allocator, None, 1.0, 1 << 20, None
        )
        req = server._request(text(2000)[:1024] + text(900, 1))
        adder.add_one_req(req, False, None)
    assert req.extend_end == 1924
    assert adder.new_chunked_req is None


# -- without a rule, upstream's own ------------------------------------------------


def test_without_a_rule_nothing_changes() -> None:
    """The hooks are in place in every process and follow no rule in most."""
    from sglang.srt.runtime_context import mamba_track_grid

    server = Scheduling(budgets=(1000,))
    forwards = server.prefill(text(9000))
    assert forwards[0].end == 8192
    assert mamba_track_grid(PAGE_TOKENS) == 256


# -- decode and side states --------------------------------------------------------


def test_decode_follows_the_grid(grid: Grid) -> None:
    from sglang.srt.managers import schedule_batch
    from sglang.srt.managers.scheduler_components import batch_result_processor
    from sglang.srt.speculative import spec_utils

    for module in (schedule_batch, batch_result_processor, spec_utils):
        assert module.mamba_track_grid(PAGE_TOKENS) == grid.store_grid


@pytest.mark.parametrize("accepted", [None, 1, 2, 3, 4])
def test_decode_and_verify_steps(grid: Grid, accepted: int | None) -> None:
    """Upstream's own results processing names the depth that the planner wants;
    `accepted` tokens of an MTP verify, or a plain decode step."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    processor = batch_result_processor.SchedulerBatchResultProcessor
    this = SimpleNamespace(tree_cache=SimpleNamespace(page_size=PAGE_TOKENS))
    step = accepted or 1
    for before in range(700, 700 + 2 * grid.store_grid, step):
        after = before + step
        req = SimpleNamespace(
            seqlen=after + 1,
            decode_batch_idx=1,
            kv=SimpleNamespace(kv_committed_len=after),
        )
        batch = SimpleNamespace(
            spec_algorithm=SimpleNamespace(is_none=lambda: accepted is None),
            mamba_decode_batch_idx_cpu=[1],
        )
        result = SimpleNamespace(
            num_correct_drafts_per_req_cpu=[step - 1],
            num_non_draft_tokens_per_req=1,
            grammar_retained_tokens=None,
        )
        found, depth = processor._mamba_check_track_boundary(
            this, req, batch, result, 0
        )
        wanted = decode_depth(decode_interval(grid), before, after)
        assert (depth if found else None) == wanted


def forward_batch(**facts: Any) -> Any:
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    batch = object.__new__(ForwardBatch)
    batch.mamba_track_mask = torch.tensor([True, False])
    batch.mamba_track_seqlens = torch.tensor([130, -1])
    batch.extend_prefix_lens = torch.tensor([0, 0])
    batch.mamba_prefill_track_mask_cpu = [True, False]
    for name, value in facts.items():
        setattr(batch, name, value)
    return batch


def test_side_states_follow_the_recurrent_state() -> None:
    assert forward_batch().mamba_track_aligned_lens().tolist()[0] == 128
    untracked = forward_batch(
        mamba_track_seqlens=None, mamba_prefill_track_mask_cpu=[False, False]
    )
    assert untracked.mamba_track_aligned_lens() is None
    with pytest.raises(RuntimeError, match="no boundary for the PLE windows"):
        forward_batch(mamba_track_seqlens=None).mamba_track_aligned_lens()
