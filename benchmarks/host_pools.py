"""SGLang's real pools with the real model's sizes, and no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout

CONFIG_FILE = Path(__file__).parents[1] / "tests" / "data" / "qwen3.8-flash-next.json"


PAGE_PLANES = frozenset({"k", "v", "index"})
"""And the same with `draft_` before."""


@dataclass(frozen=True, slots=True)
class DevicePools:
    """The pools of one server rank, and who hands out their pages."""

    kv: Any
    requests: Any
    allocator: Any
    drafts: tuple[Any, ...] = ()

    def records(self) -> dict[str, list[torch.Tensor]]:
        """Every plane as rows of bytes, one per page or slot, one tensor per layer.

        The pools' own memory, found without the code under test.
        """
        full, state = self.kv.full_kv_pool, self.requests.mamba_pool.mamba_cache
        tensors = {
            "k": full.k_buffer,
            "v": full.v_buffer,
            "index": self.kv.qsa_compressed_k_buffer_pool,
            "ssm": state.temporal,
            "conv": state.conv[0],
            "ple_conv": self.requests.short_conv_pool.conv_state,
            "ple_ngram": [self.requests.ngram_pool.context],
        }
        for draft in self.drafts:
            tensors["draft_k"] = draft.full_kv_pool.k_buffer
            tensors["draft_v"] = draft.full_kv_pool.v_buffer
            tensors["draft_index"] = draft.qsa_compressed_k_buffer_pool
        pages, slots = self.pages + 1, self.slots + 1
        return {
            name: [
                layer.view(torch.uint8).reshape(
                    pages if is_page_plane(name) else slots, -1
                )
                for layer in layers
            ]
            for name, layers in tensors.items()
        }

    @property
    def pages(self) -> int:
        """Pages that can be used; page 0 is padding."""
        return int(self.kv.size) // int(self.kv.page_size)

    @property
    def slots(self) -> int:
        """State slots that can be used; slot 0 is padding."""
        return int(self.requests.mamba_pool.size)


def is_page_plane(name: str) -> bool:
    return name.removeprefix("draft_") in PAGE_PLANES


def real_layout() -> Layout:
    """One rank, bf16 pages and fp32 states."""
    return build(read_model_config(CONFIG_FILE), ServerFacts(), origin="config")


def publish_settings() -> None:
    """The process-wide settings that SGLang's pools and caches read."""
    from sglang.srt.runtime_context import get_parallel, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    reset_context()
    arguments = ServerArgs(model_path="dummy", device="cuda", page_size=64)
    arguments._mamba_cache_chunk_size = 64
    publish(arguments, role="tokenizer")
    get_parallel().override_permanently(tp_rank=0, pp_rank=0)


def real_pools(layout: Layout, *, pages: int, slots: int) -> DevicePools:
    """Pools of one rank on the GPU; `sglang_qsa.arena` proves their sizes."""
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    g = layout.geometry
    tokens = pages * g.page_tokens
    requests = _request_pool(layout, slots, tokens)
    kv = QSATokenToKVPool(
        size=tokens,
        dtype=torch.bfloat16,
        page_size=g.page_tokens,
        head_num=g.kv_heads,
        head_dim=g.head_dim,
        full_attention_layer_ids=list(g.kv_layers),
        device="cuda",
        mamba_pool=requests.mamba_pool,
        qsa_index_kv_heads=g.index_heads,
        qsa_index_head_dim=g.index_dim,
        qsa_compress_ratio=g.compress_ratio,
        qsa_token_topk=g.index_budget_tokens,
        num_request_slots=requests.req_to_token.shape[0],
    )
    allocator = PagedTokenToKVPoolAllocator(
        size=tokens,
        page_size=g.page_tokens,
        dtype=torch.bfloat16,
        device="cuda",
        kvcache=kv,
        need_sort=False,
    )
    return DevicePools(kv, requests, allocator)


def _request_pool(layout: Layout, slots: int, context_tokens: int) -> Any:
    from sglang.srt.configs import mamba_utils as states
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    g = layout.geometry
    inner = g.gdn_value_heads * g.gdn_value_dim
    shape = states.Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=inner,
        n_groups=(g.gdn_conv_channels - inner) // (2 * g.gdn_key_dim),
        num_heads=g.gdn_value_heads,
        head_dim=g.gdn_value_dim,
        state_size=g.gdn_key_dim,
        conv_kernel=g.gdn_conv_window + 1,
    )
    return HybridReqToTokenPool(
        size=4,
        mamba_size=slots,
        mamba_spec_state_size=4,
        max_context_len=context_tokens,
        device="cuda",
        enable_memory_saver=False,
        cache_params=states.Mamba2CacheParams(
            shape=shape,
            layers=list(g.gdn_layers),
            dtype=states.Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32),
        ),
        mamba_layer_ids=list(g.gdn_layers),
        enable_mamba_extra_buffer=True,
        short_conv_layer_ids=list(g.ple_layers),
        short_conv_state_shape=(g.ple_channels, g.ple_window),
        ngram_context_len=g.ngram_tokens,
        ngram_eos_token_id=g.ngram_eos_token_id,
    )
