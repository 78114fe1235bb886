"""FlashInfer in the kernel benchmarks: how it is called, and what stands without it."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.kernels import (
    paged_attention,
    score_topk,
    sparse_decode,
    topk,
    wrong_blocks,
)
from benchmarks.kernels.timing import NOT_INSTALLED
from sglang_qsa_kernels.sparse_decode.cases import CASES, inputs
from sglang_qsa_kernels.sparse_decode.reference import sparse_decode_reference
from sglang_qsa_kernels.topk.reference import topk_reference

CPU = torch.device("cpu")
HEAD = {
    "gpu": "a GPU",
    "commit": "0" * 40,
    "method": "Measured",
    "versions": {"torch": "1", "triton": "2", "sglang": "3"},
}


class Wrapper:
    """The part of `BatchDecodeWithPagedKVCacheWrapper` that is used, in plain torch."""

    def __init__(
        self,
        workspace: torch.Tensor,
        layout: str,
        *,
        use_tensor_cores: bool,
        backend: str,
    ) -> None:
        assert not workspace.any()
        assert (layout, use_tensor_cores, backend) == ("NHD", True, "fa2")

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float,
    ) -> None:
        assert {each.dtype for each in (indptr, indices, last_page_len)} == {
            torch.int32
        }
        assert page_size == 1
        assert len(indptr) == len(last_page_len) + 1
        assert int(indptr[-1]) == len(indices)
        self.pages = [
            indices[start:end].long() for start, end in pairwise(indptr.tolist())
        ]
        self.shape = (len(last_page_len), num_qo_heads, head_dim)
        self.pool = (1, num_kv_heads, head_dim)
        self.dtypes, self.scale = (q_data_type, kv_data_type), sm_scale

    def run(
        self, q: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        assert q.shape == self.shape
        assert (q.dtype, pools[0].dtype) == self.dtypes
        assert {pool.shape[1:] for pool in pools} == {self.pool}
        rows = []
        for query, pages in zip(q.double(), self.pages, strict=True):
            group = len(query) // self.pool[1]
            k, v = (
                pool[pages, 0].double().repeat_interleave(group, 1) for pool in pools
            )
            weights = (torch.einsum("hd,thd->ht", query, k) * self.scale).softmax(1)
            rows.append(torch.einsum("ht,thd->hd", weights, v))
        return torch.stack(rows)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)


@pytest.mark.parametrize(
    "name", ["short rows, bf16", "short rows, fp8 plain", "verify, bf16", "small heads"]
)
def test_pages_are_the_selected_slots(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(paged_attention, "WORKSPACE_BYTES", 1 << 10)
    given = inputs(next(case for case in CASES if case.name == name), CPU)
    wanted = sparse_decode_reference(
        *given.positional,
        softmax_scale=given.softmax_scale,
        k_scales=None,
        v_scales=None,
        dtype=torch.float64,
    )
    calls = sparse_decode.contenders([given])
    assert list(calls) == list(sparse_decode.COLUMNS)
    found = calls[sparse_decode.FLASHINFER][0]()
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, wanted)


def test_selects_as_sglang_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def top_k_ragged_transform(
        scores: torch.Tensor,
        offsets: torch.Tensor,
        lengths: torch.Tensor,
        k: int,
        **options: Any,
    ) -> torch.Tensor:
        starts = options.pop("row_starts")
        assert options == {
            "deterministic": True,
            "tie_break": 1,
            "dsa_graph_safe": True,
        }
        assert (offsets.dtype, starts.dtype) == (torch.int32, torch.int32)
        return topk_reference(scores, lengths, starts, count=k) + offsets[:, None]

    library: Any = SimpleNamespace(
        top_k_ragged_transform=top_k_ragged_transform,
        TopKTieBreak=SimpleNamespace(SMALL=1),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    scores = torch.rand(3, 900)
    lengths = torch.tensor([900, 700, 600], dtype=torch.int32)
    select = topk.flashinfer()
    assert select is not None
    assert torch.equal(select(scores, lengths), topk_reference(scores, lengths))


@pytest.mark.usefixtures("absent")
def test_without_flashinfer_nothing_of_it_is_measured() -> None:
    assert topk.flashinfer() is None
    assert topk.selectors()["flashinfer"] is None
    given = inputs(next(case for case in CASES if case.name == "verify, bf16"), CPU)
    assert sparse_decode.FLASHINFER not in sparse_decode.contenders([given])
    assert sparse_decode.plan_us(given) is None


def cells(table: str, first: str) -> dict[str, str]:
    """The cells of the line that begins with `first`, by the heads of its columns."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    at = next(at for at, line in enumerate(lines) if line[0] == first)
    head = next(line for line in reversed(lines[:at]) if "---" in line[0])
    return dict(zip(lines[lines.index(head) - 1], lines[at], strict=True))


def times(**medians: float) -> dict[str, dict[str, float]]:
    return {name: {"median_us": value} for name, value in medians.items()}


@pytest.mark.parametrize("installed", [True, False])
def test_table_of_attention(installed: bool) -> None:
    names = [
        name
        for name in sparse_decode.COLUMNS
        if installed or name != sparse_decode.FLASHINFER
    ]
    row = {
        "case": "1 x 1, bf16",
        "bytes": 8_000_000,
        "times": times(**{name: 10.0 * at for at, name in enumerate(names, start=1)}),
        "errors": dict.fromkeys(names, 0.002),
        "flashinfer_plan_us": 41.0 if installed else None,
    }
    result = {
        "header": HEAD,
        "flashinfer": "0.7.2" if installed else NOT_INSTALLED,
        "test": "1 passed",
        "copy_gb_per_s": 4000.0,
        "times": [row],
    }
    table = sparse_decode.table(result)
    found = cells(table, "1 x 1, bf16")
    assert found["ours, µs"] == "10.0"
    assert found["ratio to upstream"] == "2.00"
    assert found["GB/s"] == "800"
    assert found["flashinfer paged, µs"] == ("30.0" if installed else NOT_INSTALLED)
    assert found["ratio to flashinfer"] == ("3.00" if installed else "")
    error = found["error, flashinfer paged"]
    assert error == ("2.00e-03" if installed else NOT_INSTALLED)
    assert ("41 to 41 µs of the host" in table) == installed


@pytest.mark.parametrize("installed", [True, False])
def test_table_of_selection(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_blocks, "BLOCKS", (1_024,))
    monkeypatch.setattr(wrong_blocks, "CALLS", 2)
    medians = {
        "ours": 10.0,
        "upstream": 20.0,
        topk.FROM_MAXIMA: 9.0,
        "torch.topk": 50.0,
    }
    differing = {"ours": 0.0, "upstream": 0.02}
    if installed:
        medians |= {"flashinfer": 30.0}
        differing |= {"flashinfer": 0.001}
    row = {"case": "4 x 8192", "times": times(**medians), "differing": differing}
    selectors = {
        "ours": topk_reference,
        "flashinfer": topk_reference if installed else None,
    }
    result = {
        "header": HEAD,
        "flashinfer": "0.7.2" if installed else NOT_INSTALLED,
        "test": "1 passed",
        "times": [row],
        "wrong_blocks": wrong_blocks.wrong_blocks(selectors, CPU),
    }
    table = topk.table(result)
    found = cells(table, "4 x 8192")
    assert found["flashinfer"] == ("30.0" if installed else NOT_INSTALLED)
    assert found["torch.topk"] == "50.0"
    assert ("flashinfer 0.1%" in table) == installed
    wrong = cells(table, "1,024")
    assert wrong["wrong, ours"] == "0.0%"
    assert wrong["sets in 2 calls, ours"] == "1"
    assert wrong["attention error, ours"] == wrong["true blocks"]
    shown = "0.0%" if installed else NOT_INSTALLED
    assert wrong["wrong, flashinfer"] == shown


@pytest.mark.parametrize("installed", [True, False])
def test_table_of_scores_and_selection(installed: bool) -> None:
    medians = {"ours": 10.0, score_topk.UPSTREAM: 20.0}
    if installed:
        medians |= {score_topk.INVARIANT: 35.0}
    shape = {"requests": 4, "tokens": 32_768, "rows": 4, "times": times(**medians)}
    result = {
        "machine": HEAD,
        "tests": ["1 passed"],
        "tilelang": "1",
        "flashinfer": "0.7.2" if installed else NOT_INSTALLED,
        "shapes": [shape],
    }
    line = score_topk.markdown(result).splitlines()[-1]
    last = "35.0 | 3.50" if installed else f"{NOT_INSTALLED} | "
    assert line == f"| 4 | 4 × 32k | 10.0 | 20.0 | 2.00 | {last} |"


def test_a_missing_pick_counts_whatever_the_order() -> None:
    wanted = torch.tensor([[0, 2, 4, 6]], dtype=torch.int32)
    found = torch.tensor([[6, 4, 2, -1]], dtype=torch.int32)
    assert topk.differing(wanted.flip(1), wanted, 8) == 0
    assert topk.differing(found, wanted, 8) == 0.25
