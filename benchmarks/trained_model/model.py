"""The small Qwen4Exp that is trained, and its checkpoint.

The tiny random model's architecture (gated delta layers with unequal heads, sparse
attention with real selection, one n-gram layer), wide enough to learn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen4ExpForConditionalGeneration

from benchmarks.trained_model import drafts as mtp
from benchmarks.trained_model.drafts import Drafts
from sglang_qsa.demo.tiny_model import model_config, write_companions

__all__ = [
    "build",
    "build_drafts",
    "parameters",
    "save",
    "tokenizer",
    "write_companions",
]

TEXT_CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "layer_types": (["linear_attention"] * 2 + ["full_attention"]) * 2,
    "full_attention_interval": 3,
    "ple_embed_dim": 128,
    "ngram_vocab_size_base": 1009,
    "hc_lowrank": 32,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "initializer_range": 0.05,
    **mtp.CONFIG,
}


def build(seed: int) -> Any:
    """A model with fresh weights, fp32, on the CPU."""
    torch.manual_seed(seed)
    config = model_config(**TEXT_CONFIG)
    config.text_config._attn_implementation = "sdpa"
    model = Qwen4ExpForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                # Memories of 5 to 5,000 tokens; the usual ones are all short.
                ends = math.log(2e-4), math.log(2e-1)
                parameter.copy_(torch.linspace(*ends, parameter.numel()))
            elif name.endswith("ple.conv1d.weight"):
                nn.init.normal_(parameter, std=0.1)
    return model


def build_drafts(model: Any) -> Drafts:
    """A fresh MTP layer for it."""
    return Drafts(model.config.text_config, TEXT_CONFIG["initializer_range"])


def tokenizer(directory: Path) -> Any:
    """Of a directory that `write_companions` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(directory)


def parameters(model: Any) -> int:
    """Trained ones: the vision tower, which text never meets, is left out."""
    named = model.named_parameters()
    return sum(p.numel() for name, p in named if "visual" not in name)


def save(model: Any, drafts: Drafts, directory: Path) -> None:
    """Config and weights for SGLang and transformers, in bf16."""
    model.to(torch.bfloat16).save_pretrained(directory)
    mtp.add_to(directory, drafts)
