"""The tables that the copy kernel is given, read as the kernel reads them.

The kernel itself has its tests in `tests/kernels` and on a GPU; here its contract is
done by `memmove`, for whole servers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from benchmarks.host_server import POISON, assert_same, prompt
from sglang_qsa.tiers.host import engine, kernel_copies, strategy
from sglang_qsa.tiers.host.kernel_copies import KernelCopies, KernelPlan
from sglang_qsa_kernels.page_copy import MOVE_FIELDS
from tests.tiers.host.server import assert_comes_back_elsewhere, serving

pytestmark = pytest.mark.usefixtures("sglang_runtime")


def contract(
    pieces: torch.Tensor, parts: torch.Tensor, *, to_host: bool
) -> Callable[[int, int, int], None]:
    """What `page_copy` says it does."""

    def launch(plan: int, part: int, _stream: int) -> None:
        first_a, end_a, first_b, end_b = parts[part].tolist()
        count_a, count_b, before_b = integers(plan, MOVE_FIELDS)
        for before, count, first, end in (
            (0, count_a, first_a, end_a),
            (before_b, count_b, first_b, end_b),
        ):
            for row in range(1 + before, 1 + before + count):
                index, *places = integers(plan + row * MOVE_FIELDS * 8, MOVE_FIELDS)
                for piece in pieces[first:end].tolist():
                    copy(piece, index, places)

    def copy(piece: list[int], index: int, places: list[int]) -> None:
        device, device_stride, host, host_stride, size, tokens = piece
        there = host + index // tokens * host_stride
        for place in places[: 1 if to_host else 2]:
            if place:
                row = integers(place, 1)[0] // tokens
                here = device + row * device_stride
                source, target = (here, there) if to_host else (there, here)
                ctypes.memmove(target, source, size)

    return launch


def integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_copies, "prepare", contract)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cpu.Event, "query", lambda _event: True, raising=False)
    monkeypatch.setattr(torch.cpu.Stream, "cuda_stream", 0, raising=False)
    monkeypatch.setattr(strategy, "copies_of", KernelCopies)


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("pages", [2, 64])
def test_every_plane_comes_back_elsewhere(pages: int, draft: bool) -> None:
    with serving(draft=draft) as server:
        assert_comes_back_elsewhere(server, pages)


def test_many_prefixes_in_one_submission() -> None:
    """Backed up together; and plans are used again, by shorter ones after longer."""
    with serving() as server:
        prompts = [prompt(1 + n % 3, first=10_000 * (n + 1)) for n in range(6)]
        wanted = [server.prefill(tokens, seed) for seed, tokens in enumerate(prompts)]
        server.back_up()
        server.evict()
        server.wipe()
        for _ in range(2):
            for tokens, bytes_ in zip(prompts, wanted, strict=True):
                _, req = server.load(tokens)
                assert_same(server.served(tokens), bytes_)
                server.release(req)
            server.evict()
            server.wipe()


def test_a_state_without_pages() -> None:
    """The pages of a prefix are still on the device, its state is not."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    with serving() as server:
        trunk, longer = prompt(3), prompt(5)
        wanted = server.prefill(trunk, seed=1)
        server.prefill(longer, seed=2)
        server.back_up()
        server.cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        assert server.match(trunk).device_prefix_len == 0
        server.host("kv").kv_buffer.fill_(POISON)
        _, req = server.load(trunk)
        assert_same(server.served(trunk), wanted)
        state = server.state_of(req)
        assert_same(state, {name: wanted[name] for name in state})


def test_parts_are_all_of_a_load_once() -> None:
    with serving() as server:
        copies = server.controller.l2_transfer_engine._copies
        seen: list[int] = []
        parts = copies.parts.tolist()
        for first_a, end_a, first_b, end_b in parts[:-1]:
            seen += [*range(first_a, end_a), *range(first_b, end_b)]
        first_a, end_a, first_b, end_b = parts[-1]
        assert sorted(seen) == [*range(first_a, end_a), *range(first_b, end_b)]
        assert len(parts) == 1 + len(engine.part_ends(5))


def test_a_plan_under_way_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def submitted() -> KernelPlan:
        plan = copies.plan()
        copies.submitted(plan)
        return plan

    with serving() as server:
        copies: KernelCopies = server.controller.l2_transfer_engine._copies
        monkeypatch.setattr(torch.cpu.Event, "query", lambda _event: False)
        busy = [submitted() for _ in range(40)]
        assert len({id(plan) for plan in busy}) == 40
        monkeypatch.setattr(torch.cpu.Event, "query", lambda _event: True)
        again = [copies.plan() for _ in range(200)]
        assert {id(plan) for plan in busy} <= {id(plan) for plan in again}
        assert len({id(plan) for plan in again}) == 200


@pytest.mark.parametrize(
    ("layers", "ends"), [(48, [11, 23, 47]), (5, [1, 2, 4]), (2, [0, 1]), (1, [0])]
)
def test_part_ends(layers: int, ends: list[int]) -> None:
    assert engine.part_ends(layers) == ends
