"""The deployments whose layouts the tests pin, built from the real model config."""

from __future__ import annotations

from pathlib import Path

from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout

CONFIG_FILE = Path(__file__).parent / "data" / "qwen3.8-flash-next.json"

DEPLOYMENTS = {
    "default": ServerFacts(),
    "tp2": ServerFacts(tp_size=2),
    "draft": ServerFacts(draft=True),
    "fp8-scales": ServerFacts(
        kv_cache_dtype="fp8_e4m3", qsa_indexer_dtype="fp8_e4m3", kv_scales=True
    ),
}


def layout_of(facts: ServerFacts) -> Layout:
    """The layout of the real model served under `facts`."""
    return build(read_model_config(CONFIG_FILE), facts, origin=str(CONFIG_FILE))
