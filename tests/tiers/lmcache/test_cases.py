"""The failure cases, by number, on real pools and a real daemon.

Before each restore the destination is poisoned, and afterwards every plane is
compared: what was stored is there byte for byte, all other memory is as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.errors import LayoutMismatch, StoreUnavailable
from sglang_qsa.layout import Layout
from tests.messages import assert_refusal
from tests.pools import PAGE_PLANES, PAGE_TOKENS, RATIO, build_pools, small_layout
from tests.tiers.lmcache.metric import counted
from tests.tiers.lmcache.objects import ObjectGroup, delete_object
from tests.tiers.lmcache.rank import (
    POISON,
    Image,
    Rank,
    Request,
    qsa_rank,
    stock_rank,
)

INDEX_ROW_BYTES = 4096

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("sglang_runtime")]

_FRESH = itertools.count(1)


@pytest.fixture
def prompt() -> list[int]:
    """512 tokens that no other test of this run uses."""
    start = next(_FRESH) * 1000
    return list(range(start, start + 512))


@pytest.fixture
def name(prompt: list[int]) -> str:
    """Request ids that no other test uses."""
    return f"request-{prompt[0]}"


def assert_restored(
    before: Image,
    after: Image,
    source: Image,
    pages: dict[int, int],
    slots: dict[int, int],
) -> None:
    """Rows moved `{from: to}` hold what `source` had; every other row is unchanged."""
    for plane, layers in after.items():
        moved = pages if plane in PAGE_PLANES else slots
        for layer, rows in enumerate(layers):
            wanted = before[plane][layer].clone()
            wanted[list(moved.values())] = source[plane][layer][list(moved)]
            different = (rows != wanted).any(dim=1).nonzero().flatten().tolist()
            assert not different, f"{plane}, layer {layer}: rows {different}"


# -- case 1 ----------------------------------------------------------------------


def plant(rank: Rank, page: int, row: int, direction: torch.Tensor) -> None:
    """One index key per layer that a query in this direction must select."""
    for buffer in rank.pools.kv.qsa_compressed_k_buffer_pool:
        buffer[page * (PAGE_TOKENS // RATIO) + row, 0] = direction.to(buffer.dtype)


def selected_block(rank: Rank, pages: Sequence[int], query: torch.Tensor) -> set[int]:
    """The best block of a sequence on these pages, by upstream's own scoring."""
    from sglang.srt.layers.attention.qsa.mqa import torch_qsa_mqa_decode

    blocks = len(pages) * PAGE_TOKENS // RATIO
    return {
        int(
            torch_qsa_mqa_decode(
                query.repeat(1, 4, 1),
                buffer.view(-1, PAGE_TOKENS // RATIO, 1, query.numel()),
                torch.tensor([list(pages)]),
                torch.tensor([blocks]),
                blocks,
            ).argmax()
        )
        for buffer in rank.pools.kv.qsa_compressed_k_buffer_pool
    }


def stale_index_keys(rank: Rank, prompt: list[int], name: str) -> None:
    """Store pages 3, 7; overwrite them; restore to 9, 2; select on 9, 2."""
    tokens = prompt[: 2 * PAGE_TOKENS]
    direction = torch.nn.functional.one_hot(torch.tensor(17), 128).float()
    rank.fill(1, pages=[3, 7], slots=[1])
    for buffer in rank.pools.kv.qsa_compressed_k_buffer_pool:
        buffer.zero_()
    plant(rank, page=7, row=5, direction=8 * direction)
    stored = rank.image()
    rank.store(f"{name}-store", tokens, pages=[3, 7], slot=1)

    rank.fill(2, pages=[3, 7], slots=[1])
    plant(rank, page=3, row=2, direction=8 * direction)
    rank.poison(pages=[9, 2], slots=[4])
    before = rank.image()
    lookup = rank.look_up(f"{name}-load", tokens)
    assert lookup.total_hit_tokens == len(tokens)
    assert rank.restore(lookup, pages=[9, 2], slot=4)

    assert selected_block(rank, [9, 2], direction) == {PAGE_TOKENS // RATIO + 5}
    assert_restored(before, rank.image(), stored, {3: 9, 7: 2}, {1: 4})
    assert all(rows[9].numel() == INDEX_ROW_BYTES for rows in stored["index"])


def test_case_1_stale_index_keys(rank: Rank, prompt: list[int], name: str) -> None:
    stale_index_keys(rank, prompt, name)


# -- case 2 ----------------------------------------------------------------------

LOSSES = {
    "the last state": (1, ObjectGroup.STATE, PAGE_TOKENS),
    "the last page": (1, ObjectGroup.PAGES, PAGE_TOKENS),
    "the first page": (0, ObjectGroup.PAGES, 0),
    "the first state": (0, ObjectGroup.STATE, 2 * PAGE_TOKENS),
}


@pytest.mark.parametrize(("chunk", "group", "left"), LOSSES.values(), ids=LOSSES)
def test_case_2_one_object_missing(
    daemon: LMCacheDaemon,
    rank: Rank,
    prompt: list[int],
    name: str,
    chunk: int,
    group: ObjectGroup,
    left: int,
) -> None:
    """Two pages with a state after each; what is left is whole, or nothing."""
    tokens = prompt[: 2 * PAGE_TOKENS]
    rank.fill(1, pages=[3, 7], slots=[1, 2])
    stored = rank.image()
    rank.store(f"{name}-1", tokens[:PAGE_TOKENS], pages=[3], slot=1)
    rank.store(f"{name}-2", tokens, pages=[3, 7], slot=2)
    delete_object(daemon, rank.connector.model_name, tokens, chunk, group)

    with qsa_rank(daemon.client_config) as restarted:
        restarted.poison(range(1, 17), range(1, 9))
        before = restarted.image()
        with counted("sglang_qsa_lookups_total", result="hit" if left else "miss"):
            lookup = restarted.look_up(f"{name}-load", tokens)
        assert lookup.total_hit_tokens == left
        assert_restored(before, restarted.image(), before, {}, {})
        if left:
            pages, slot = {PAGE_TOKENS: ([9], 1), 2 * PAGE_TOKENS: ([9, 2], 2)}[left]
            assert restarted.restore(lookup, pages, slot=4)
            moved = dict(zip([3, 7], pages, strict=False))
            assert_restored(before, restarted.image(), stored, moved, {slot: 4})


@pytest.mark.parametrize("group", ObjectGroup)
def test_case_2_object_lost_after_the_look_up(
    daemon: LMCacheDaemon,
    rank: Rank,
    prompt: list[int],
    name: str,
    group: ObjectGroup,
) -> None:
    """The load fails as a whole: nothing half loaded is reported as loaded."""
    tokens = prompt[: 2 * PAGE_TOKENS]
    rank.store(f"{name}-store", tokens, pages=[3, 7], slot=1)
    request = Request(f"{name}-load")
    rank.ask(request, [*tokens, 0])
    match = rank.match(request, [*tokens, 0])
    assert match.host_hit_length == len(tokens)
    delete_object(daemon, rank.connector.model_name, tokens, 1, group)
    free_pages = rank.pools.allocator.available_size()
    with counted("sglang_qsa_loads_total", result="rejected"):
        assert rank.load_back(request, match) == 0
    assert rank.pools.allocator.available_size() == free_pages
    assert request.kv.mamba_cow_src_index is None
    assert request.kv.mamba_pool_idx is None


# -- case 3 ----------------------------------------------------------------------


def windows_of_the_previous_occupant(rank: Rank, prompt: list[int], name: str) -> None:
    """Slot 1 is stored; slot 4, which held another request, gets it back."""
    context = rank.pools.requests.ngram_pool.context
    conv = rank.pools.requests.short_conv_pool.conv_state
    context[1], conv[:, 1] = torch.tensor([11, 12]), 1.5
    untouched = context[0].clone(), conv[:, 0].clone()
    rank.store(f"{name}-store", prompt[:PAGE_TOKENS], pages=[3], slot=1)

    context[4], conv[:, 4] = torch.tensor([91, 92]), -7
    lookup = rank.look_up(f"{name}-load", prompt[:PAGE_TOKENS])
    assert rank.restore(lookup, pages=[9], slot=4)

    assert context[4].tolist() == [11, 12]
    assert conv[:, 4].eq(1.5).all()
    assert torch.equal(context[0], untouched[0])
    assert torch.equal(conv[:, 0], untouched[1])


def test_case_3_windows_of_the_previous_occupant(
    rank: Rank, prompt: list[int], name: str
) -> None:
    windows_of_the_previous_occupant(rank, prompt, name)


# -- the harness itself ----------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (stale_index_keys, "assert {0} == {21}"),
        (windows_of_the_previous_occupant, r"assert [91, 92] == [11, 12]"),
    ],
    ids=["case 1", "case 3"],
)
def test_harness_upstream_s_own_cache_fails(
    daemon: LMCacheDaemon,
    prompt: list[int],
    name: str,
    case: Callable[[Rank, list[int], str], None],
    what: str,
) -> None:
    """What it stores it restores, with success, and the answer would be wrong."""
    with stock_rank(daemon.client_config) as stock:
        with pytest.raises(AssertionError) as failure:
            case(stock, prompt, name)
        assert what in str(failure.value)


# -- case 4 ----------------------------------------------------------------------


def test_case_4_scales_that_no_pool_has(daemon: LMCacheDaemon) -> None:
    """Refused before anything is registered with the daemon."""
    layout = small_layout(kv_cache_dtype="fp8_e4m3", kv_scales=True)
    with pytest.raises(LayoutMismatch) as caught:
        qsa_rank(
            daemon.client_config, layout, pools=build_pools(kv_dtype="float8_e4m3fn")
        )
    assert_refusal(caught.value, found="'k_scale', 'v_scale'")


# -- case 6 ----------------------------------------------------------------------


def test_case_6_two_servers_of_one_configuration(
    daemon: LMCacheDaemon, prompt: list[int], name: str
) -> None:
    """Each is known by itself, and each finds what the other has stored."""
    tokens = prompt[:PAGE_TOKENS]
    with (
        qsa_rank(daemon.client_config) as one,
        qsa_rank(daemon.client_config) as other,
    ):
        assert one.connector.instance_id != other.connector.instance_id
        assert one.connector.model_name == other.connector.model_name
        one.fill(6, pages=[3], slots=[1])
        stored = one.image()
        one.store(f"{name}-one", tokens, pages=[3], slot=1)
        assert one.found(f"{name}-self", tokens) == PAGE_TOKENS
        other.poison([5], [2])
        before = other.image()
        lookup = other.look_up(f"{name}-other", tokens)
        assert other.restore(lookup, pages=[5], slot=2)
        assert_restored(before, other.image(), stored, {3: 5}, {1: 2})


def test_case_6_keys_are_equal_after_a_restart(
    daemon: LMCacheDaemon, prompt: list[int], name: str
) -> None:
    tokens = prompt[:PAGE_TOKENS]
    keys = []
    for run in ("first", "second"):
        with qsa_rank(daemon.client_config) as rank:
            lookup = rank.look_up(f"{name}-{run}", tokens)
            keys.append(
                rank.connector._create_key(
                    lookup, start=0, end=PAGE_TOKENS, worker_id=0
                )
            )
            assert lookup.total_hit_tokens == (0 if run == "first" else PAGE_TOKENS)
            if run == "first":
                rank.store(f"{name}-store", tokens, pages=[3], slot=1)
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "other",
    [
        small_layout(weights_fingerprint="other weights"),
        small_layout(image_input=True),
    ],
    ids=["weights", "image input"],
)
def test_case_6_other_configuration_finds_nothing(
    daemon: LMCacheDaemon, rank: Rank, prompt: list[int], name: str, other: Layout
) -> None:
    """Same bytes in every size: only the name of the layout tells them apart."""
    rank.store(f"{name}-store", prompt[:PAGE_TOKENS], pages=[3], slot=1)
    with qsa_rank(daemon.client_config, other) as stranger:
        assert stranger.connector.model_name != rank.connector.model_name
        assert stranger.found(f"{name}-load", prompt[:PAGE_TOKENS]) == 0


# -- case 10 ---------------------------------------------------------------------

RECURRENCE_TOKENS = 128


def recurrence(state: float, first: int, last: int) -> float:
    """S_t = 0.5 S_{t-1} + t. A constant input would hide a token applied twice."""
    for token in range(first, last + 1):
        state = 0.5 * state + token
    return state


def state_cell(rank: Rank, slot: int) -> torch.Tensor:
    """One number of the recurrent state in `slot`."""
    cell: torch.Tensor = rank.pools.requests.mamba_pool.mamba_cache.temporal[0, slot]
    return cell.view(-1)[:1]


def test_case_10_last_token_is_not_applied_twice(
    rank: Rank, prompt: list[int], name: str
) -> None:
    """Checkpoints at 64 and 128; the resend of 128 tokens goes on at 64."""
    tokens = prompt[:RECURRENCE_TOKENS]
    for boundary, slot in ((64, 1), (128, 2)):
        state_cell(rank, slot).fill_(recurrence(0.0, 1, boundary))
        pages = [3, 7][: boundary // PAGE_TOKENS]
        rank.store(f"{name}-{boundary}", tokens[:boundary], pages, slot)
    rank.poison(range(1, 17), range(1, 9))

    request = Request(f"{name}-resend")
    resumed = rank.resume(request, tokens)
    assert resumed == 64
    assert request.kv.mamba_cow_src_index is not None
    state = state_cell(rank, int(request.kv.mamba_cow_src_index)).item()
    assert recurrence(state, resumed + 1, RECURRENCE_TOKENS) == 254.0


def test_case_10_state_is_not_served_for_a_shorter_key(
    rank: Rank, prompt: list[int], name: str
) -> None:
    """A key that shrank after the look-up must not get the state of its old end."""
    tokens = prompt[:RECURRENCE_TOKENS]
    rank.store(f"{name}-store", tokens, pages=[3, 7], slot=1)
    request = Request(f"{name}-load")
    rank.ask(request, tokens)
    match = rank.match(request, tokens[:PAGE_TOKENS])
    assert match.host_hit_length == 0
    assert rank.load_back(request, match) == 0


# -- case 19 ---------------------------------------------------------------------


def test_case_19_shared_pages_without_a_state_at_the_fork(
    rank: Rank, prompt: list[int], name: str
) -> None:
    """A and B share 192 tokens; three pages match, and no state belongs to them."""
    first = prompt[:384]
    second = [*prompt[:192], *reversed(prompt[192:400])]
    pages = [3, 7, 4, 8, 5, 9]
    rank.store(f"{name}-a", first, pages, slot=1)
    assert rank.found(f"{name}-a-again", first) == 384
    assert rank.found(f"{name}-b", second) == 0
    assert rank.resume(Request(f"{name}-b-resume"), second) == 0

    rank.store(f"{name}-c", first[:128], pages[:2], slot=2)
    assert rank.found(f"{name}-b-later", second) == 128
    assert rank.resume(Request(f"{name}-b-resume-later"), second) == 128


# -- case 25 ---------------------------------------------------------------------


def test_case_25_daemon_that_merges_object_groups(
    daemons: dict[str, LMCacheDaemon],
) -> None:
    """It would store the padding slot as a state; the launch is refused instead."""
    with pytest.raises(StoreUnavailable) as caught:
        qsa_rank(daemons["merging-daemon"].client_config)
    assert_refusal(caught.value, origin="tcp://127.0.0.1", found="one object")
    assert "--separate-object-groups" in str(caught.value)


def test_case_25_upstream_s_own_cache_starts_there(
    daemons: dict[str, LMCacheDaemon], prompt: list[int], name: str
) -> None:
    """Why it has to be refused: a chunk without a state is served with one."""
    with stock_rank(daemons["merging-daemon"].client_config) as stock:
        stock.store(f"{name}-store", prompt[:128], pages=[3, 7], slot=1)
        assert stock.found(f"{name}-load", prompt[:64]) == 64


# -- planes ----------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
def test_every_plane_comes_back_in_another_order(
    daemon: LMCacheDaemon, prompt: list[int], name: str, kv_dtype: str
) -> None:
    """Eight pages and a state through a server that is gone to one that is new."""
    layout = small_layout(kv_cache_dtype=f"torch.{kv_dtype}")
    source, target = [1, 2, 3, 4, 5, 6, 7, 8], [9, 3, 12, 1, 16, 7, 2, 11]
    with qsa_rank(
        daemon.client_config, layout, pools=build_pools(kv_dtype=kv_dtype)
    ) as rank:
        rank.fill(11, source, [3])
        stored = rank.image()
        rank.store(f"{name}-store", prompt, source, slot=3)
    with qsa_rank(
        daemon.client_config, layout, pools=build_pools(kv_dtype=kv_dtype)
    ) as rank:
        rank.poison(range(17), range(9))
        before = rank.image()
        assert rank.restore(rank.look_up(f"{name}-load", prompt), target, slot=7)
        moved = dict(zip(source, target, strict=True))
        assert_restored(before, rank.image(), stored, moved, {3: 7})


def test_salts_do_not_share(rank: Rank, prompt: list[int], name: str) -> None:
    """Neither with each other nor with requests that have none."""
    tokens = prompt[:PAGE_TOKENS]
    salts = [
        rank.connector.build_cache_salt(*parts)
        for parts in (
            ("a", None),
            ("b", None),
            ("a", "lora"),
            (None, "a"),
            (None, None),
        )
    ]
    rank.store(f"{name}-store", tokens, pages=[3], slot=1, salt=salts[0])
    found = [
        rank.found(f"{name}-{number}", tokens, salt)
        for number, salt in enumerate(salts)
    ]
    assert found == [PAGE_TOKENS, 0, 0, 0, 0]


def test_poison_is_what_the_cases_ask_for(rank: Rank, tmp_path: Path) -> None:
    rank.poison([2], [3])
    for plane, layers in rank.image().items():
        row = 2 if plane in PAGE_PLANES else 3
        assert all(layer[row].eq(POISON).all() for layer in layers)
