"""MTP: the raw index keys of a request's open group outlive the drafts behind it."""

from __future__ import annotations

import logging
import pkgutil
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.hooks import ring
from sglang_qsa.hooks.base import register
from sglang_qsa.hooks.ring import GROUPS, MEMBER_SLOTS, PENDING_SLOTS, RING
from sglang_qsa_kernels.ring_slots.reference import ring_slots_reference
from tests.deployments import DEPLOYMENTS, layout_of
from tests.pools import RATIO, build_pools

USERS = (
    "sglang.srt.layers.attention.qsa.qsa_indexer",
    "sglang.srt.layers.attention.qwen_sparse_attn_backend",
)
"""Modules that have the builders by name."""

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture(autouse=True)
def upstream_s_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test builds, the process is as it was."""
    monkeypatch.setattr(ring, "_groups", 1)
    ring._warn_of_role.cache_clear()


@pytest.fixture
def speculation() -> Iterator[None]:
    """A server with MTP, as SGLang resolves NEXTN."""
    from sglang.srt.runtime_context import get_context, get_spec

    before = get_spec().speculative_algorithm
    get_context().override("tests", speculative_algorithm="EAGLE")
    yield
    get_context().override("tests", speculative_algorithm=before)


@pytest.fixture
def mtp(applied: Any, speculation: None) -> Any:
    """The pool of such a server, with all hooks."""
    return build_pools().kv


def rings(pool: Any) -> list[torch.Tensor]:
    return [*pool.qsa_key_state_buffer_pool, pool.qsa_rope_position_buffer]


def slots_of(
    requests: Sequence[int], positions: Sequence[int], user: str = USERS[0]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where an eager decode-like forward writes these rows, and reads their groups."""
    rows, at = torch.arange(len(requests)), torch.tensor(positions)
    owners = torch.tensor(requests)
    pending = pkgutil.resolve_name(f"{user}.build_pending_ring_slots")(
        token_to_batch_idx=rows,
        req_pool_indices=owners,
        sequence_lengths=at + 1,
        logical_positions=at,
        compress_ratio=RATIO,
        is_extend=False,
    )
    members = pkgutil.resolve_name(f"{user}.build_group_ring_slots")(
        req_pool_indices=owners,
        group_end_positions=at,
        sequence_ids=rows,
        compress_ratio=RATIO,
    )
    return pending, members


# -- the pool --------------------------------------------------------------------


def test_only_rings_grow(applied: Any) -> None:
    stock = build_pools().kv
    assert ring._groups == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_drafts", lambda: True)
        larger = build_pools().kv
    for found, was in zip(rings(larger), rings(stock), strict=True):
        assert found.shape == (GROUPS * was.shape[0], *was.shape[1:])
        assert found.dtype == was.dtype
    assert larger.qsa_num_request_slots == stock.qsa_num_request_slots
    for name in ("k_buffer", "v_buffer"):
        found, was = (getattr(p.full_kv_pool, name) for p in (larger, stock))
        assert [b.shape for b in found] == [b.shape for b in was]
    assert larger.qsa_compressed_flat.shape == stock.qsa_compressed_flat.shape


def test_nothing_changes_without_drafts(applied: Any) -> None:
    stock = build_pools().kv
    for buffer in rings(stock):
        assert buffer.shape[0] == stock.qsa_num_request_slots * RATIO
    requests, positions = [1, 2, 3], [0, 5, 10]
    for user in USERS:
        pending, members = slots_of(requests, positions, user)
        wanted = ring_slots_reference(
            torch.tensor(positions), torch.tensor(requests), ratio=RATIO, groups=1
        )
        assert torch.equal(pending, wanted[0])
        assert torch.equal(members.int(), wanted[1])


def test_a_server_with_drafts_tells_what_rings_take(
    applied: Any, speculation: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sglang_qsa"):
        pool = build_pools().kv
    for buffer in rings(pool):
        assert buffer.shape[0] == pool.qsa_num_request_slots * GROUPS * RATIO
    (line,) = [line for line in caplog.messages if "raw index keys" in line]
    assert f"{sum(ring.nbytes for ring in rings(pool)) / 1e6:.1f} MB" in line


def test_what_it_takes_is_negligible() -> None:
    """Beside a request's states. SGLang (0.5.23) reports rings with the pool, and no
    budget of it counts them: they are in what the memory fraction leaves free."""
    layout = layout_of(DEPLOYMENTS["draft"])
    geometry = layout.geometry
    layers = len(geometry.kv_layers) + geometry.draft_layers
    key = geometry.index_heads * geometry.index_dim * torch.bfloat16.itemsize
    positions = (1 + geometry.draft_layers) * 3 * torch.int64.itemsize
    more = (GROUPS - 1) * geometry.compress_ratio * (layers * key + positions)
    assert more < layout.checkpoint_bytes / 5_000


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_rings_of_a_role_are_the_peer_s_too(
    applied: Any,
    speculation: None,
    role: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are transferred whole, and the peer may be a server without the plugin."""
    from sglang.srt.runtime_context import get_context

    get_context().override("tests", disaggregation_mode=role)
    try:
        pool = build_pools(draft=True).kv
    finally:
        get_context().override("tests", disaggregation_mode="null")
    for buffer in rings(pool):
        assert buffer.shape[0] == pool.qsa_num_request_slots * RATIO
    _, lengths, item_lengths = pool.get_qsa_pending_state_buf_infos()
    for length, item in zip(lengths, item_lengths, strict=True):
        assert length == pool.qsa_num_request_slots * item
    (line,) = [line for line in caplog.messages if "not repaired" in line]
    assert f"role {role}," in line


@pytest.mark.parametrize("absent", RING[1:], ids=lambda hook: str(hook.id))
def test_all_hooks_or_a_refusal(
    registry: Any, speculation: None, absent: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A larger ring that somebody addresses as if it were upstream's mixes requests."""
    register(hook for hook in RING if hook is not absent)
    registry.apply_hooks()
    with pytest.raises(SystemExit) as exit_:
        build_pools()
    assert exit_.value.code == 2
    assert ring._groups == 1
    (line,) = [
        line for line in capfd.readouterr().err.splitlines() if "sglang_qsa: " in line
    ]
    assert f"hooks not applied: {absent.id}" in line


# -- who addresses it ------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
def test_builders_are_reached_by_name(mtp: Any, user: str) -> None:
    for hook in (PENDING_SLOTS, MEMBER_SLOTS):
        name = hook.target.rpartition(".")[2]
        assert pkgutil.resolve_name(f"{user}.{name}").__wrapped__.__name__ == name
    requests = [4, 4, 4, 4, 2, 0]
    positions = [6, 7, 8, 9, 2, 0]
    pending, members = slots_of(requests, positions, user)
    wanted = ring_slots_reference(
        torch.tensor(positions), torch.tensor(requests), ratio=RATIO, groups=GROUPS
    )
    assert torch.equal(pending, wanted[0])
    assert torch.equal(members.int(), wanted[1])
    # Kernels read them as one row of `ratio` after the other.
    assert members.is_contiguous()


def test_prefill_keeps_the_open_group(mtp: Any) -> None:
    """Tokens in front of it go to request 0's ring, or to a place of nobody else's."""
    lengths, prefixes, owners = [64 + 9, 6], [64, 0], [3, 1]
    positions = torch.cat(
        [torch.arange(p, n) for p, n in zip(prefixes, lengths, strict=True)]
    )
    rows = torch.tensor([0] * 9 + [1] * 6)
    slots = pkgutil.resolve_name(PENDING_SLOTS.target)(
        token_to_batch_idx=rows,
        req_pool_indices=torch.tensor(owners),
        sequence_lengths=torch.tensor(lengths),
        logical_positions=positions,
        compress_ratio=RATIO,
        is_extend=True,
    )
    size = GROUPS * RATIO
    for row, position, slot in zip(rows, positions, slots, strict=True):
        own = owners[row] * size + position % size
        still_open = position >= lengths[row] // RATIO * RATIO
        assert slot == own if still_open else slot in (own, position % size)
    kept = slots[slots >= size].tolist()
    assert len(set(kept)) == len(kept)


def test_replays_without_the_kernels(mtp: Any) -> None:
    """Graph buffers of a device that has no Triton are refreshed by the builders."""
    upstream = pkgutil.resolve_name(f"{USERS[1]}.QwenSparseAttnBackend")
    lengths, owners = torch.tensor([7, 8, 1]), torch.tensor([2, 2, 0])
    like = torch.empty_like
    metadata = SimpleNamespace(
        token_to_kv_pool=mtp,
        sequence_lengths=lengths,
        token_to_batch_idx=torch.arange(3),
        compress_ratio=RATIO,
        graph_compressed_lengths=like(lengths),
        graph_write_locs=like(lengths),
        decode_logical_positions=like(lengths),
        pending_ring_slots=like(lengths),
        graph_ring_group_locs=torch.empty(3, RATIO, dtype=torch.int32),
        graph_compressed_page_table=torch.empty(3, 1, dtype=torch.int32),
    )
    backend = SimpleNamespace(req_to_token=torch.zeros(4, 64, dtype=torch.int32))
    upstream._update_qsa_cuda_graph_metadata(backend, metadata, owners)
    slots, members = ring_slots_reference(
        lengths - 1, owners, ratio=RATIO, groups=GROUPS
    )
    assert torch.equal(metadata.pending_ring_slots, slots)
    assert torch.equal(metadata.graph_ring_group_locs, members)


# -- what it is for --------------------------------------------------------------


def mixed_groups(pool: Any, drafts: int, *, requests: int = 3, steps: int = 80) -> int:
    """Verify `drafts` rows a step, accept some of them, and count the wrong groups.

    A key is a number of its own here. Every group that an accepted row closes is read
    as the indexer reads it, after all rows of the step are written.
    """
    chance = random.Random(drafts)
    keys = pool.qsa_rope_position_buffer[:, 0]
    accepted: dict[int, list[int]] = {r: [] for r in range(1, requests + 1)}
    wrong = number = 0
    for _ in range(steps):
        owners = [r for r in accepted for _ in range(drafts)]
        positions = [len(accepted[r]) + row for r in accepted for row in range(drafts)]
        pending, members = slots_of(owners, positions)
        written = torch.arange(number, number + len(owners))
        number += len(owners)
        keys[pending] = written
        for first, request in enumerate(accepted):
            rows = range(first * drafts, (first + 1) * drafts)
            for row in rows[: chance.randint(1, drafts)]:
                accepted[request].append(int(written[row]))
                if len(accepted[request]) % RATIO == 0:
                    wanted = accepted[request][-RATIO:]
                    wrong += keys[members[row]].tolist() != wanted
    return wrong


@pytest.mark.parametrize("drafts", range(1, RATIO + 1))
def test_no_group_is_mixed(mtp: Any, drafts: int) -> None:
    assert mixed_groups(mtp, drafts) == 0


def test_upstream_mixes_groups() -> None:
    """The reason for the hooks; when this fails they can go."""
    pool = build_pools().kv
    assert mixed_groups(pool, 1) == 0
    assert all(mixed_groups(pool, drafts) > 0 for drafts in range(2, RATIO + 1))


def test_retraction_takes_the_whole_ring_along(mtp: Any) -> None:
    """Into another request's slot, where nobody else's keys are touched."""
    for number, buffer in enumerate(rings(mtp), 1):
        values = torch.arange(buffer.numel()).reshape(buffer.shape) % 251 + number
        buffer.copy_(values)
    size, tokens = GROUPS * RATIO, torch.arange(64, 128)
    before = [buffer.clone() for buffer in rings(mtp)]
    saved = mtp.get_cpu_copy(tokens, req_pool_index=3)
    for buffer in rings(mtp):
        buffer[3 * size : 4 * size] = 0
    mtp.load_cpu_copy(saved, tokens, req_pool_index=1)
    for found, was in zip(rings(mtp), before, strict=True):
        assert torch.equal(found[size : 2 * size], was[3 * size : 4 * size])
        for other in (0, 2, 4):
            rows = slice(other * size, (other + 1) * size)
            assert torch.equal(found[rows], was[rows])
