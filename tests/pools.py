"""Real SGLang pools of a small model, as the failure cases describe it.

Page 64, ratio 4, two QSA layers with two KV heads of 256 and one index key of 128,
three GDN layers whose key and value heads differ in size, one PLE layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.host_pools import PAGE_PLANES as PAGE_PLANES
from benchmarks.host_pools import DevicePools
from sglang_qsa.arena import Arena, open_arena
from sglang_qsa.geometry import ARCHITECTURE, ServerFacts, build
from sglang_qsa.layout import Layout

PAGE_TOKENS = 64
RATIO = 4
QSA_LAYERS = [2, 4]
GDN_LAYERS = [0, 1, 3]
PLE_LAYERS = [1]
PADDING_TOKEN = 7

CONFIG: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "text_config": {
        "dtype": "bfloat16",
        "num_hidden_layers": 5,
        "layer_types": [
            "full_attention" if layer in QSA_LAYERS else "linear_attention"
            for layer in range(5)
        ],
        "hidden_size": 20,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 64,
        "indexer_compress_ratio": RATIO,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "hc_count": 2,
        "ple_layer_ids": [layer + 1 for layer in PLE_LAYERS],
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "eos_token_id": PADDING_TOKEN,
    },
}


def small_layout(**facts: Any) -> Layout:
    """The layout of the pools below."""
    return build(CONFIG, ServerFacts(**facts), origin="tests/pools.py")


class Pools(DevicePools):
    """The pools of one server rank, and who hands out their pages."""

    def open(self, layout: Layout | None = None) -> Arena:
        return open_arena(
            kv_pool=self.kv,
            req_to_token_pool=self.requests,
            draft_pools=self.drafts,
            layout=layout or small_layout(draft=bool(self.drafts)),
        )


def build_pools(
    *,
    pages: int = 16,
    slots: int = 8,
    ple: bool = True,
    ngram_tokens: int = 2,
    kv_dtype: str = "bfloat16",
    context_tokens: int = 2048,
    draft: bool = False,
    device: str = "cpu",
) -> Pools:
    """Pools of `pages` pages and `slots` state slots, padding not counted.

    With `draft`, an MTP layer's pool besides.

    Needs the fixture `sglang_runtime`.
    """
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    dtype = getattr(torch, kv_dtype)
    requests = _request_pool(slots, ple, ngram_tokens, context_tokens, device)
    kv = _kv_pool(pages, requests, dtype, QSA_LAYERS)
    allocator = PagedTokenToKVPoolAllocator(
        size=pages * PAGE_TOKENS,
        page_size=PAGE_TOKENS,
        dtype=dtype,
        device=device,
        kvcache=kv,
        need_sort=False,
    )
    drafts = (_kv_pool(pages, requests, dtype, [0]),) if draft else ()
    return Pools(kv, requests, allocator, drafts)


def _request_pool(
    slots: int, ple: bool, ngram_tokens: int, context_tokens: int, device: str
) -> Any:
    from sglang.srt.configs import mamba_utils as states
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    shape = states.Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=4 * 8,
        n_groups=2,
        num_heads=4,
        head_dim=8,
        state_size=16,
        conv_kernel=4,
    )
    dtypes = states.Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
    windows: dict[str, Any] = {
        "short_conv_layer_ids": PLE_LAYERS,
        "short_conv_state_shape": (40, 9),
        "ngram_context_len": ngram_tokens,
        "ngram_eos_token_id": PADDING_TOKEN,
    }
    return HybridReqToTokenPool(
        size=4,
        mamba_size=slots,
        mamba_spec_state_size=4,
        max_context_len=context_tokens,
        device=device,
        enable_memory_saver=False,
        cache_params=states.Mamba2CacheParams(
            shape=shape, layers=GDN_LAYERS, dtype=dtypes
        ),
        mamba_layer_ids=GDN_LAYERS,
        enable_mamba_extra_buffer=True,
        **(windows if ple else {}),
    )


def _kv_pool(
    pages: int, requests: Any, dtype: torch.dtype, layers: Sequence[int]
) -> Any:
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    return QSATokenToKVPool(
        size=pages * PAGE_TOKENS,
        dtype=dtype,
        page_size=PAGE_TOKENS,
        head_num=2,
        head_dim=256,
        full_attention_layer_ids=list(layers),
        device=requests.device,
        mamba_pool=requests.mamba_pool,
        qsa_index_kv_heads=1,
        qsa_index_head_dim=128,
        qsa_compress_ratio=RATIO,
        qsa_token_topk=64,
        num_request_slots=requests.req_to_token.shape[0],
    )
