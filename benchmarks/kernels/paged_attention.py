"""FlashInfer's paged attention with pages of one token: the selected slots."""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from typing import Any

import torch

from sglang_qsa_kernels.sparse_decode.cases import Inputs

WORKSPACE_BYTES = 1 << 28
PLANS = 20


class PagedAttention:
    """One call of FlashInfer, planned for exactly these inputs.

    Page table and plan are made before: a layer's table depends on what it selected,
    and here costs nothing. The kernel on tensor cores (`fa2`) is what SGLang asks for
    where four or more query heads share a KV head.

    Source: `BatchDecodeWithPagedKVCacheWrapper` of flashinfer/decode.py@0.7.2, and
    `should_use_tensor_core` of sglang/srt/layers/attention/
    flashinfer_backend.py@0.5.23.
    """

    def __init__(self, given: Inputs) -> None:
        self.given = given
        self.row_ends, self.slots = page_table(given)
        self.wrapper = library().BatchDecodeWithPagedKVCacheWrapper(
            _workspace(given.q.device), "NHD", use_tensor_cores=True, backend="fa2"
        )
        self.plan()

    def plan(self) -> None:
        """Divide the work. The ends of rows lie on the host: nothing waits for them."""
        rows, heads, dim = self.given.q.shape
        self.wrapper.plan(
            self.row_ends,
            self.slots,
            torch.ones(rows, dtype=torch.int32),
            heads,
            self.given.k_cache.shape[1],
            dim,
            1,
            q_data_type=self.given.q.dtype,
            kv_data_type=self.given.k_cache.dtype,
            sm_scale=self.given.softmax_scale,
        )

    def run(self) -> torch.Tensor:
        pools = (self.given.k_cache[:, None], self.given.v_cache[:, None])
        found: torch.Tensor = self.wrapper.run(self.given.q, pools)
        return found

    def plan_us(self) -> float:
        """Host time of a plan: a server makes one per step, not per layer."""
        spans_us = []
        for _ in range(PLANS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.plan()
            spans_us.append(1e6 * (time.perf_counter() - start))
        return statistics.median(spans_us)


def library() -> Any:
    """FlashInfer, or None where it is not installed."""
    try:
        return importlib.import_module("flashinfer")
    except ImportError:
        return None


def page_table(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Where rows end, [rows + 1] int32 on the host, and the slots of all, int32."""
    selected = given.tokens >= 0
    slots = given.token_slots[given.row_requests[:, None], given.tokens.clamp(min=0)]
    ends = torch.zeros(len(selected) + 1, dtype=torch.int32)
    ends[1:] = selected.sum(1).cumsum(0)
    return ends, slots[selected].int()


@functools.cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Partial results; calls of one stream share it, as layers do."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
