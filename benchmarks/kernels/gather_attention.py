"""What runs today: K and V gathered to a scratch, then dense attention over it."""

from __future__ import annotations

from typing import Any

import torch

from sglang_qsa_kernels.sparse_decode.cases import Inputs


class GatherAttention:
    """Upstream's three launches and FlashAttention 2, with its buffers made before.

    Source: `_forward_paged_attention` of sglang/srt/layers/attention/
    qwen_sparse_attn_backend.py@0.5.23.
    """

    def __init__(self, given: Inputs) -> None:
        self.given = given
        self.kernels = _kernels()
        rows, self.width = given.tokens.shape
        device = given.q.device
        self.counts = torch.empty(rows, dtype=torch.int32, device=device)
        self.ends_k = torch.empty(rows + 1, dtype=torch.int32, device=device)
        self.ends_q = torch.arange(rows + 1, dtype=torch.int32, device=device)
        shape = (rows * self.width, *given.k_cache.shape[1:])
        self.k = torch.empty(shape, dtype=given.q.dtype, device=device)
        self.v = torch.empty_like(self.k)

    @property
    def name(self) -> str:
        """Empty where SGLang is not installed."""
        return "" if self.kernels is None else "upstream gather + FA2"

    def run(self) -> torch.Tensor:
        given, rows = self.given, len(self.given.q)
        assert self.kernels is not None
        self.kernels.qwen_sparse_fa2_cu_seqlens_triton(
            given.lengths, given.tokens, self.counts, self.ends_k, rows, self.width
        )
        self.kernels.qwen_sparse_kv_extraction_compact_triton(
            given.k_cache,
            given.v_cache,
            given.token_slots,
            given.row_requests,
            given.tokens,
            given.lengths,
            self.ends_k,
            self.k,
            self.v,
            rows,
            self.width,
        )
        found: torch.Tensor = torch.ops.aten._flash_attention_forward(
            given.q,
            self.k,
            self.v,
            self.ends_q,
            self.ends_k,
            1,
            self.width,
            0.0,
            False,
            False,
            scale=given.softmax_scale,
        )[0]
        return found


def _kernels() -> Any:
    try:
        from sglang.srt.layers.attention.qsa import sparse_attn
    except ImportError:
        return None
    return sparse_attn


def torch_attention(given: Inputs) -> torch.Tensor:
    """Indexing and SDPA; every row has to be full."""
    slots = given.token_slots[given.row_requests[:, None], given.tokens.clamp(min=0)]
    keys = given.k_cache[slots].to(given.q.dtype).transpose(1, 2)
    values = given.v_cache[slots].to(given.q.dtype).transpose(1, 2)
    mask = (given.tokens >= 0)[:, None, None]
    return torch.nn.functional.scaled_dot_product_attention(
        given.q[:, :, None],
        keys,
        values,
        attn_mask=mask,
        scale=given.softmax_scale,
        enable_gqa=True,
    )[:, :, 0]
