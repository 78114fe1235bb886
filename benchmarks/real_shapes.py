"""A model with the real shapes of the cache and few weights.

Cache planes have the sizes of Qwen3.8-Flash-Next (48 layers, 12 of them QSA). The
experts and the n-gram table, which no plane depends on, are cut down so that the
model fits one GPU with dummy weights; the rest comes from the tiny model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "tests" / "data" / "qwen3.8-flash-next.json"

_CUT_DOWN = {
    "num_experts": 8,
    "num_experts_per_tok": 4,
    "ngram_vocab_size_base": 20_000,
    "split_ngram_parts": 4,
    "intermediate_size": 2560,
}
_ROPE = {
    "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25,
    "rope_theta": 1e7,
}


def write_real_shapes(directory: Path, tiny_model: Path) -> Path:
    """Write a config for `--load-format dummy --skip-tokenizer-init`.

    Args:
        directory: where to; created.
        tiny_model: checkpoint whose processor files and remaining settings are used.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in tiny_model.iterdir():
        if ".safetensors" not in file.suffixes:
            shutil.copy(file, directory)
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    real = json.loads(CONFIG.read_text(encoding="utf-8"))["text_config"]
    text = config["text_config"] | real | _CUT_DOWN
    layers = range(text["num_hidden_layers"])
    text["layer_types"] = [
        "full_attention" if layer % 4 == 3 else "linear_attention" for layer in layers
    ]
    text["rope_parameters"] = text["rope_parameters"] | _ROPE
    config["text_config"] = text
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory
