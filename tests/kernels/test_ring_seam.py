"""After upstream's launches, the rows of a replay have their slots in larger rings."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.hooks import ring
from sglang_qsa_kernels.ring_slots.reference import ring_slots_reference

RATIO, PAGE, CONTEXT = 4, 64, 256
REQUESTS = 9
"""Slots of the pool; 0 is nobody's."""
CAPACITY = 12
"""Rows of a graph's buffers, more than any graph here uses."""
POISON = -7
POOL = SimpleNamespace(qsa_compressed_page_size=PAGE // RATIO, qsa_compress_ratio=RATIO)
DECODE, VERIFY, EXTEND = 0, 1, 2


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    """`graph_metadata` alone: without a GPU, SGLang's package needs the CPU engine."""
    sglang = importlib.util.find_spec("sglang")
    assert sglang is not None
    assert sglang.origin is not None
    file = Path(sglang.origin).parent / "srt/layers/attention/qsa/graph_metadata.py"
    spec = importlib.util.spec_from_file_location("graph_metadata", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tokens(device: torch.device) -> torch.Tensor:
    """`req_to_token`: each request has pages of its own."""
    slots = torch.arange(REQUESTS * CONTEXT, device=device) + PAGE
    return slots.view(REQUESTS, CONTEXT).int()


def graph(rows: int, device: torch.device) -> Any:
    """Metadata of a captured graph, its outputs full of what no replay writes."""

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, POISON, dtype=dtype, device=device)[:rows]

    indexer = SimpleNamespace(
        compress_ratio=RATIO,
        graph_compressed_lengths=buffer(CAPACITY),
        graph_write_locs=buffer(CAPACITY),
        graph_compressed_page_table=buffer(CAPACITY, CONTEXT // PAGE),
        graph_prefix_lengths=buffer(CAPACITY),
        decode_logical_positions=buffer(CAPACITY),
        pending_ring_slots=buffer(CAPACITY, dtype=torch.int64),
        graph_ring_group_locs=buffer(CAPACITY, RATIO),
    )
    return SimpleNamespace(
        sequence_lengths=buffer(CAPACITY),
        row_req_pool_indices=buffer(CAPACITY),
        indexer_metadata=indexer,
    )


def replay(
    upstream: ModuleType, mode: int, metadata: Any, tokens: torch.Tensor, **facts: Any
) -> None:
    """Refresh the metadata of one graph as a server with the hooks does."""
    given = {
        "mode": mode,
        "bs": facts["seq_lens"].numel(),
        "num_rows": metadata.sequence_lengths.numel(),
        "extend_lens": None,
        "extend_len": 0,
        "num_padding": 0,
        "metadata": metadata,
        "req_to_token": tokens,
        "pool": POOL,
        **facts,
    }
    ring.address_rows(upstream.launch_graph_metadata(**given), **given)


def assert_addressed(
    metadata: Any, requests: Sequence[int], positions: Sequence[int], groups: int
) -> None:
    """Each row's slots are those of this request and position; (0, 0) is padding."""
    device = metadata.sequence_lengths.device
    indexer = metadata.indexer_metadata
    slots, members = ring_slots_reference(
        torch.tensor(positions, device=device),
        torch.tensor(requests, device=device),
        ratio=RATIO,
        groups=groups,
    )
    assert torch.equal(indexer.pending_ring_slots, slots)
    assert torch.equal(indexer.graph_ring_group_locs, members)


@pytest.fixture(params=[1, 2])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the rings: upstream's, and those of a server with MTP."""
    groups = int(request.param)
    monkeypatch.setattr(ring, "_groups", groups)
    return groups


def integers(*values: int, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device)


def test_decode(
    upstream: ModuleType, groups: int, device: torch.device, tokens: torch.Tensor
) -> None:
    metadata = graph(5, device)
    replay(
        upstream,
        DECODE,
        metadata,
        tokens,
        seq_lens=integers(1, 8, 65, 1, 1, device=device),
        req_pool_indices=integers(5, 8, 2, 0, 0, device=device),
        num_padding=2,
    )
    assert_addressed(metadata, [5, 8, 2, 0, 0], [0, 7, 64, 0, 0], groups)


@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_verify(
    upstream: ModuleType,
    groups: int,
    device: torch.device,
    tokens: torch.Tensor,
    drafts: int,
) -> None:
    metadata = graph(3 * drafts, device)
    replay(
        upstream,
        VERIFY,
        metadata,
        tokens,
        seq_lens=integers(6, 64, 1, device=device),
        req_pool_indices=integers(8, 3, 0, device=device),
        extend_len=drafts,
        num_padding=1,
    )
    requests = [8] * drafts + [3] * drafts + [0] * drafts
    positions = [*range(6, 6 + drafts), *range(64, 64 + drafts), *[0] * drafts]
    assert_addressed(metadata, requests, positions, groups)


def test_draft_extend(
    upstream: ModuleType, groups: int, device: torch.device, tokens: torch.Tensor
) -> None:
    """Rows of requests one behind the other; the rest of the graph is padding."""
    metadata = graph(10, device)
    replay(
        upstream,
        EXTEND,
        metadata,
        tokens,
        seq_lens=integers(9, 67, 1, device=device),
        req_pool_indices=integers(7, 4, 0, device=device),
        extend_lens=integers(3, 4, 4, device=device).int(),
        num_padding=1,
    )
    requests = [7] * 3 + [4] * 4 + [0] * 3
    positions = [6, 7, 8, 63, 64, 65, 66, 0, 0, 0]
    assert_addressed(metadata, requests, positions, groups)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_drafts(
    upstream: ModuleType,
    groups: int,
    device: torch.device,
    tokens: torch.Tensor,
    steps: int,
) -> None:
    graphs = tuple(graph(4, device) for _ in range(steps))
    call = (
        upstream.prepare_draft_graph_metadata(graphs, tokens, POOL),
        integers(3, 62, 200, 1, device=device),
        integers(6, 1, 8, 0, device=device),
        4,
        1,
    )
    ring.address_draft_rows(upstream.launch_draft_graph_metadata(*call), *call)
    for step, metadata in enumerate(graphs):
        at = [length + step for length in (3, 62, 200)]
        assert_addressed(metadata, [6, 1, 8, 0], [*at, 0], groups)
