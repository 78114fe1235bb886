"""Model config + server facts -> `Layout`.

Pure: standard library only. The class defaults of upstream's config classes are
not this model's numbers, so every size is read from the config file itself and a
missing one is an error, never a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.layout import DType, Geometry, Layout, build_layout

ARCHITECTURE = "Qwen4ExpForConditionalGeneration"

PAGE_TOKENS = 64
"""Upstream forces this page size for compressed QSA (sglang 0.5.23)."""

_ATTENTION_TYPES = frozenset(
    {"full_attention", "qwen_sparse_attention", "indexed_attention"}
)
_DTYPES = {dtype.label: dtype for dtype in DType} | {
    "bf16": DType.BF16,
    "fp32": DType.FP32,
    "fp16": DType.FP16,
    "fp8_e4m3": DType.FP8_E4M3,
    "fp8_e5m2": DType.FP8_E5M2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server decides beside the model config; names follow SGLang flags."""

    tp_size: int = 1
    page_size: int = PAGE_TOKENS
    kv_cache_dtype: str = "auto"
    qsa_indexer_dtype: str = "auto"
    mamba_ssm_dtype: str | None = None
    mamba_conv_dtype: str = "bfloat16"
    kv_scales: bool = False
    draft: bool = False
    image_input: bool = False
    weights_fingerprint: str = ""


def read_model_config(path: Path) -> dict[str, Any]:
    """Load a model's `config.json` (the file, or the directory that holds it).

    Raises:
        ConfigError: unreadable, malformed, or not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            refusal(
                found=f"{type(error).__name__}: {error}",
                wanted="a readable JSON model config",
                origin=str(file),
                way_out="give the path of the model's config.json",
            )
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(
            refusal(
                found=type(document).__name__,
                wanted="a JSON object",
                origin=str(file),
                way_out="give the path of the model's config.json",
            )
        )
    return document


def build(config: Mapping[str, Any], facts: ServerFacts, *, origin: str) -> Layout:
    """The layout of `config` served under `facts`.

    Args:
        config: the whole model config as JSON gives it (nested `text_config`).
        facts: server settings; defaults are SGLang's.
        origin: where `config` came from, for messages.

    Raises:
        ConfigError: another architecture, a missing or impossible number.
    """
    check_architecture(config, origin=origin)
    reader = _Reader(config, origin)
    attention, recurrent = _layer_split(reader)
    tp = facts.tp_size
    key_heads = reader.shard("linear_num_key_heads", tp)
    value_heads = reader.shard("linear_num_value_heads", tp)
    key_dim = reader.number("linear_key_head_dim")
    value_dim = reader.number("linear_value_head_dim")
    ple = _ple_layers(reader)
    ngram_size = reader.number("ngram_size") if ple else 0
    ratio = reader.number("indexer_compress_ratio")
    if facts.page_size % ratio:
        raise ConfigError(
            refusal(
                found=f"page size {facts.page_size}",
                wanted=f"a multiple of indexer_compress_ratio {ratio}",
                origin=origin,
                way_out=f"use --page-size {PAGE_TOKENS}",
            )
        )
    model_dtype = reader.model_dtype()
    return build_layout(
        Geometry(
            architecture=ARCHITECTURE,
            weights_fingerprint=facts.weights_fingerprint,
            image_input=facts.image_input,
            tp_size=tp,
            page_tokens=facts.page_size,
            compress_ratio=ratio,
            kv_layers=attention,
            kv_heads=reader.kv_heads_per_rank(tp),
            head_dim=reader.number("head_dim"),
            kv_dtype=_dtype(facts.kv_cache_dtype, model_dtype, "--kv-cache-dtype"),
            kv_scales=facts.kv_scales,
            index_heads=reader.number("indexer_kv_heads"),
            index_dim=reader.number("indexer_head_dim"),
            index_dtype=_dtype(
                facts.qsa_indexer_dtype, DType.BF16, "--qsa-indexer-dtype"
            ),
            index_budget_tokens=reader.number("indexer_budget"),
            draft_layers=1 if facts.draft else 0,
            gdn_layers=recurrent,
            gdn_value_heads=value_heads,
            gdn_value_dim=value_dim,
            gdn_key_dim=key_dim,
            gdn_conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
            gdn_conv_window=reader.number("linear_conv_kernel_dim") - 1,
            ssm_dtype=_dtype(
                facts.mamba_ssm_dtype or reader.text.get("mamba_ssm_dtype") or "auto",
                DType.FP32,
                "--mamba-ssm-dtype",
            ),
            ssm_order=("value_head", "value_dim", "key_dim"),
            conv_dtype=_dtype(
                facts.mamba_conv_dtype, DType.BF16, "SGLANG_MAMBA_CONV_DTYPE"
            ),
            ple_layers=ple,
            ple_channels=(
                reader.number("hidden_size") * reader.number("hc_count") if ple else 0
            ),
            ple_window=(
                (reader.number("ple_conv_kernel_size") - 1) * ngram_size if ple else 0
            ),
            ple_dtype=_dtype(
                facts.mamba_conv_dtype, DType.BF16, "SGLANG_MAMBA_CONV_DTYPE"
            ),
            ngram_tokens=max(ngram_size - 1, 0),
            ngram_eos_token_id=reader.number("eos_token_id") if ple else 0,
        )
    )


def check_architecture(config: Mapping[str, Any], *, origin: str) -> None:
    """Raise `ConfigError` unless `config` describes the model this plugin serves."""
    architectures = config.get("architectures")
    if architectures == [ARCHITECTURE]:
        return
    raise ConfigError(
        refusal(
            found=f"architectures {architectures!r}",
            wanted=f"['{ARCHITECTURE}']",
            origin=origin,
            way_out="serve this model without sglang_qsa",
        )
    )


class _Reader:
    """Typed access to the text part of a config, with the origin in every error."""

    def __init__(self, config: Mapping[str, Any], origin: str) -> None:
        self.config = config
        self.text: Mapping[str, Any] = config.get("text_config") or config
        self.origin = origin

    def number(self, name: str) -> int:
        value = self.text.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(
                refusal(
                    found=f"{name} = {value!r}",
                    wanted="a non-negative integer",
                    origin=self.origin,
                    way_out="use the checkpoint's own config.json",
                )
            )
        return value

    def shard(self, name: str, tp_size: int) -> int:
        total = self.number(name)
        if tp_size < 1 or total % tp_size:
            raise ConfigError(
                refusal(
                    found=f"tensor parallel size {tp_size}",
                    wanted=f"a divisor of {name} = {total}",
                    origin=self.origin,
                    way_out="choose another --tp-size",
                )
            )
        return total // tp_size

    def kv_heads_per_rank(self, tp_size: int) -> int:
        """KV heads are split, and replicated once there are fewer than ranks."""
        total = self.number("num_key_value_heads")
        if tp_size >= total and tp_size % total == 0:
            return 1
        return self.shard("num_key_value_heads", tp_size)

    def model_dtype(self) -> DType:
        for part in (self.text, self.config):
            name = part.get("dtype") or part.get("torch_dtype")
            if name:
                return _dtype(str(name), DType.BF16, self.origin)
        return DType.BF16


def _layer_split(reader: _Reader) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of the QSA layers and of the GDN layers."""
    count = reader.number("num_hidden_layers")
    types: Sequence[str] | None = reader.text.get("layer_types")
    if types is None:
        interval = reader.number("full_attention_interval")
        types = [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(count)
        ]
    unknown = set(types) - _ATTENTION_TYPES - {"linear_attention"}
    if len(types) != count or unknown:
        raise ConfigError(
            refusal(
                found=f"{len(types)} layer_types, unknown kinds {sorted(unknown)}",
                wanted=f"{count} entries of linear_attention or a full-attention kind",
                origin=reader.origin,
                way_out="use the checkpoint's own config.json",
            )
        )
    attention = tuple(i for i, kind in enumerate(types) if kind in _ATTENTION_TYPES)
    recurrent = tuple(i for i in range(count) if i not in attention)
    return attention, recurrent


def _ple_layers(reader: _Reader) -> tuple[int, ...]:
    """Zero-based PLE layer ids; the config counts them from one."""
    declared = reader.text.get("ple_layer_ids") or ()
    return tuple(sorted({int(layer) - 1 for layer in declared}))


def _dtype(name: str, default: DType, origin: str) -> DType:
    if name == "auto":
        return default
    dtype = _DTYPES.get(name.removeprefix("torch.").removesuffix("fn"))
    if dtype is None:
        raise ConfigError(
            refusal(
                found=f"dtype {name!r}",
                wanted=f"one of auto, {', '.join(sorted(_DTYPES))}",
                origin=origin,
                way_out="choose a supported dtype",
            )
        )
    return dtype
