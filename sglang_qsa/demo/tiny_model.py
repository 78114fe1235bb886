"""A deterministic tiny random checkpoint of the real architecture.

It keeps every feature that a prefix cache can lose: gated delta layers with unequal
key and value head sizes (so that a transposed state does not fit), two sparse
attention layers (so that mixed-up layers show), a selection budget below the demo's
longest prompt (so that blocks are dropped and a wrong index key changes the
answer), and one n-gram layer whose convolution is not zero. Memory is long and
attention is sharp, so that answers depend on far context.

Every weight is a function of its own name: the checkpoint does not depend on the
order in which a library initialises a model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_qsa.demo import tiny_drafts

if TYPE_CHECKING:
    import torch

VOCAB_TOKENS = 512
FIRST_TEXT_TOKEN = 3
TEXT_TOKENS = 497
"""Tokens FIRST_TEXT_TOKEN .. FIRST_TEXT_TOKEN + TEXT_TOKENS - 1 are text; below are
padding, end of sequence and unknown, above it image markers."""

INDEX_BUDGET_TOKENS = 2048

_SPECIAL_TOKENS = {
    "<pad>": 0,
    "<eos>": 1,
    "<unk>": 2,
    "<|image_pad|>": 500,
    "<|video_pad|>": 501,
    "<|vision_start|>": 502,
    "<|vision_end|>": 503,
}

_TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB_TOKENS,
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attn_output_gate": True,
    "max_position_embeddings": 16384,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": INDEX_BUDGET_TOKENS,
    "indexer_compress_ratio": 4,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "output_gate_type": "sigmoid",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "hc_count": 2,
    "hc_lowrank": 16,
    "ple_layer_ids": [2],
    "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 97,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "seed": 1234,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

_VISION_CONFIG: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}

_PROCESSOR_CONFIG: dict[str, Any] = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"shortest_edge": 1024, "longest_edge": 65536},
    "processor_class": "Qwen3VLProcessor",
}

_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"

_WEIGHTS_VERSION = 2
"""Raise it whenever `_weight` or the files written below change otherwise."""

_STAMP_NAME = "tiny_model.json"


def write_tiny_checkpoint(directory: Path, *, mtp: bool = False) -> Path:
    """Make sure that `directory` holds the checkpoint, and return it.

    Does nothing where it was written before with the same parameters. The
    directory appears under its name complete or not at all. The weights are made by
    a child process, so that the caller does not import torch.

    Args:
        mtp: with an MTP layer, and a target whose tokens it can guess
            (`tiny_drafts`).
    Raises:
        RuntimeError: the child failed; ends with what it wrote.
    """
    if _is_current(directory, mtp):
        return directory
    # Imported here: the engine is needed only while a checkpoint is written.
    from sglang_qsa.demo.cpu_engine import child_environment

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".tiny-") as scratch:
        fresh = Path(scratch) / "model"
        child = subprocess.run(
            [sys.executable, "-m", __name__, str(fresh), *(["mtp"] if mtp else [])],
            check=False,
            env=child_environment(),
            capture_output=True,
            text=True,
        )
        if child.returncode != 0:
            raise RuntimeError(f"the tiny model was not written\n{child.stderr}")
        _replace(fresh, directory, mtp)
    return directory


def cached_checkpoint(*, mtp: bool = False) -> Path:
    """The checkpoint in the user's cache directory, written on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "sglang-qsa" / f"tiny-{_digest(mtp)[:8]}"
    return write_tiny_checkpoint(directory, mtp=mtp)


def _is_current(directory: Path, mtp: bool) -> bool:
    try:
        stamp = json.loads((directory / _STAMP_NAME).read_text())
    except FileNotFoundError:
        return False
    return bool(stamp["digest"] == _digest(mtp))


def _digest(mtp: bool) -> str:
    parameters: dict[str, Any] = {
        "weights_version": _WEIGHTS_VERSION,
        "text": _TEXT_CONFIG,
        "vision": _VISION_CONFIG,
        "processor": _PROCESSOR_CONFIG,
        "special_tokens": _SPECIAL_TOKENS,
        "chat_template": _CHAT_TEMPLATE,
    }
    if mtp:
        parameters["drafts"] = tiny_drafts.CONFIG | tiny_drafts.ECHO
    canonical = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _replace(fresh: Path, directory: Path, mtp: bool) -> None:
    """Put `fresh` in place of `directory`; a parallel writer's result is as good."""
    if directory.exists():
        shutil.rmtree(directory)
    try:
        os.rename(fresh, directory)
    except OSError:
        if not _is_current(directory, mtp):
            raise


def model_config(**text: Any) -> Any:
    """The `Qwen4ExpConfig` of transformers, with changes to its text part."""
    from transformers import Qwen4ExpConfig

    return Qwen4ExpConfig(
        text_config=_TEXT_CONFIG | text,
        vision_config=_VISION_CONFIG,
        image_token_id=_SPECIAL_TOKENS["<|image_pad|>"],
        video_token_id=_SPECIAL_TOKENS["<|video_pad|>"],
        vision_start_token_id=_SPECIAL_TOKENS["<|vision_start|>"],
        vision_end_token_id=_SPECIAL_TOKENS["<|vision_end|>"],
        tie_word_embeddings=False,
        architectures=["Qwen4ExpForConditionalGeneration"],
    )


def write_companions(directory: Path) -> None:
    """What a server reads beside `model_config` and weights: tokenizer, processors."""
    _write_tokenizer(directory)
    files = {
        "generation_config.json": {"eos_token_id": 1, "pad_token_id": 0},
        "preprocessor_config.json": _PROCESSOR_CONFIG
        | {"image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": _PROCESSOR_CONFIG
        | {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))


def _write_files(directory: Path, mtp: bool) -> None:
    directory.mkdir(parents=True)
    _write_model(directory, tiny_drafts.CONFIG if mtp else {})
    if mtp:
        layers: int = _TEXT_CONFIG["num_hidden_layers"]
        tiny_drafts.add_drafts(directory, _draft_noise(), layers)
    write_companions(directory)
    stamp = json.dumps({"digest": _digest(mtp)}, indent=1)
    (directory / _STAMP_NAME).write_text(stamp)


def _write_model(directory: Path, text: dict[str, Any]) -> None:
    import torch
    from transformers import Qwen4ExpForConditionalGeneration

    config = model_config(**text)
    model = Qwen4ExpForConditionalGeneration(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, tuple(parameter.shape)))
    model.save_pretrained(directory)


def _draft_noise() -> dict[str, torch.Tensor]:
    import torch

    hidden, streams = _TEXT_CONFIG["hidden_size"], _TEXT_CONFIG["hc_count"]
    shapes = {
        "fc_hidden": (hidden, hidden),
        "pre_fc_norm_embedding": (hidden,),
        "pre_fc_norm_hidden": (hidden * streams,),
    }
    names = {f"mtp.{name}.weight": shape for name, shape in shapes.items()}
    return {name: _weight(name, s).to(torch.bfloat16) for name, s in names.items()}


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        # Decay rates from 1/2000 to 1/20 per token, one scale per head.
        return torch.linspace(math.log(5e-4), math.log(5e-2), shape[0])
    if name.endswith("bias"):
        return 0.1 * noise
    if "norm" in name:
        return _norm_offset(name) + 0.1 * noise
    if "embed_tokens" in name or "ngram_embedding" in name:
        return noise
    if "conv1d" in name:
        return 0.5 * noise
    gain = 2.0 if name.startswith("lm_head") else 1.0
    return gain * noise / math.sqrt(shape[-1])


def _norm_offset(name: str) -> float:
    """Centre of a norm's weight: 0 where the model adds 1 itself."""
    if "linear_attn.norm" in name or "visual" in name:
        return 1.0
    # Sharper than the usual 1: attention must pick single tokens out of thousands.
    return 1.5 if name.endswith("self_attn.q_norm.weight") else 0.0


def _write_tokenizer(directory: Path) -> None:
    """Bytes are the only words; ids without a byte decode to `[id]`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = dict(_SPECIAL_TOKENS)
    byte_names = sorted(pre_tokenizers.ByteLevel.alphabet())
    free = sorted(set(range(VOCAB_TOKENS)) - set(vocabulary.values()))
    for index, token in enumerate(free):
        named = byte_names[index] if index < len(byte_names) else f"[{token}]"
        vocabulary[named] = token
    # SGLang reads it as this model's own tokenizer class, which is byte-level.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=_CHAT_TEMPLATE,
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
    ).save_pretrained(directory)


if __name__ == "__main__":
    _write_files(Path(sys.argv[1]), mtp="mtp" in sys.argv[2:])
