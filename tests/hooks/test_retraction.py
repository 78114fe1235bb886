"""CASES 24: a retracted request comes back with its index keys and its rings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_qsa.hooks.retraction import copy_in, copy_out, move
from tests.pools import PAGE_TOKENS, RATIO, build_pools

TOKENS = 150
"""Two full pages and a part of a third; the last group is open."""
POISON = 0xA5


@pytest.fixture
def pool(sglang_runtime: None) -> Any:
    return build_pools().kv


def slots(pages: list[int]) -> torch.Tensor:
    tokens = torch.arange(PAGE_TOKENS)
    return torch.cat([tokens + page * PAGE_TOKENS for page in pages])[:TOKENS]


def side_buffers(pool: Any) -> list[torch.Tensor]:
    return [
        *pool.qsa_compressed_k_buffer_pool,
        *pool.qsa_key_state_buffer_pool,
        pool.qsa_rope_position_buffer,
    ]


def fill(buffers: list[torch.Tensor]) -> None:
    for number, buffer in enumerate(buffers):
        values = torch.arange(buffer.numel()).reshape(buffer.shape) % 251 + number
        buffer.copy_(values)


def poison(buffers: list[torch.Tensor]) -> None:
    for buffer in buffers:
        buffer.view(torch.uint8).fill_(POISON)


def test_index_rows_and_rings_survive_case_24(pool: Any) -> None:
    here, there = slots([3, 7, 5]), slots([9, 2, 4])
    fill(side_buffers(pool))
    keys = [
        b[here[::RATIO] // RATIO].clone() for b in pool.qsa_compressed_k_buffer_pool
    ]
    ring = slice(2 * RATIO, 3 * RATIO)
    rings = [
        b[ring].clone()
        for b in (*pool.qsa_key_state_buffer_pool, pool.qsa_rope_position_buffer)
    ]
    saved = copy_out(type(pool).get_cpu_copy, pool, here, req_pool_index=2)
    poison(side_buffers(pool))
    copy_in(type(pool).load_cpu_copy, pool, saved, there, req_pool_index=1)

    for buffer, wanted in zip(pool.qsa_compressed_k_buffer_pool, keys, strict=True):
        assert torch.equal(buffer[there[::RATIO] // RATIO], wanted)
    ring = slice(RATIO, 2 * RATIO)
    found = (*pool.qsa_key_state_buffer_pool, pool.qsa_rope_position_buffer)
    for buffer, wanted in zip(found, rings, strict=True):
        assert torch.equal(buffer[ring], wanted)


def test_stock_loses_them(pool: Any) -> None:
    """The reason for the hooks; when this fails they can go."""
    here = slots([3, 7, 5])
    fill(side_buffers(pool))
    saved = type(pool).get_cpu_copy(pool, here, req_pool_index=2)
    poison(side_buffers(pool))
    type(pool).load_cpu_copy(pool, saved, here, req_pool_index=2)
    for buffer in side_buffers(pool):
        assert (buffer.view(torch.uint8) == POISON).all()


def test_index_rows_move_with_their_tokens(pool: Any) -> None:
    source, target = slots([3, 7, 5]), slots([9, 2, 4])
    fill(side_buffers(pool))
    wanted = [
        b[source[::RATIO] // RATIO].clone() for b in pool.qsa_compressed_k_buffer_pool
    ]
    move(_no_upstream_move, pool, target, source)
    for buffer, rows in zip(pool.qsa_compressed_k_buffer_pool, wanted, strict=True):
        assert torch.equal(buffer[target[::RATIO] // RATIO], rows)


def _no_upstream_move(pool: Any, target: torch.Tensor, source: torch.Tensor) -> None:
    """Upstream's own move of K and V is a CUDA kernel."""
