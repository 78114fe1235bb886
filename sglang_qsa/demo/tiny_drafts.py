"""The MTP layer of the tiny checkpoint, and a target that it can follow.

The draft layer is a copy of the target's last one, and reads little but the last
token. The target's other layers write little, so that both answer alike, mostly: some
drafts are accepted and some are not. Attention of these two layers is loud: without
what it finds far back, others would be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

CONFIG = {"mtp_num_hidden_layers": 1}
"""What the text part of the config says besides."""

ECHO = {"early_layers": 0.1, "last_attention": 4.0, "target_hidden": 0.1}
"""How loud the layers before the last one are, the attention of that one, and what the
draft hears of the target's hidden state."""

_MODEL = "model.language_model."
_WRITES = re.compile(r"\.(out_proj|o_proj|down_proj|ple\.value_proj)\.weight$")
"""What a layer adds to the residual streams goes through one of these."""


def with_drafts(
    target: Mapping[str, torch.Tensor], noise: Mapping[str, torch.Tensor], layers: int
) -> Weights:
    """The weights of `target` with quiet early layers, and those of its MTP layer.

    Args:
        noise: `mtp.fc_hidden.weight`, and the weights of the norms by their names.
        layers: of the target.
    """
    import torch

    last = f"{_MODEL}layers.{layers - 1}."
    weights = {
        name: weight * _loudness(name, last) if _WRITES.search(name) else weight
        for name, weight in target.items()
    }
    for name, weight in list(weights.items()):
        if name.startswith(last):
            weights["mtp.layers.0." + name.removeprefix(last)] = weight.clone()
        if name.startswith(f"{_MODEL}hyper_connection_mixer."):
            weights["mtp." + name.removeprefix(_MODEL)] = weight.clone()
    hidden = noise["mtp.fc_hidden.weight"]
    return weights | {
        **noise,
        "mtp.fc_embedding.weight": torch.eye(len(hidden), dtype=hidden.dtype),
        "mtp.fc_hidden.weight": hidden * ECHO["target_hidden"],
    }


def _loudness(name: str, last: str) -> float:
    if name == f"{last}self_attn.o_proj.weight":
        return ECHO["last_attention"]
    early = name.startswith(f"{_MODEL}layers.") and not name.startswith(last)
    return ECHO["early_layers"] if early else 1.0


def add_drafts(directory: Path, noise: Mapping[str, torch.Tensor], layers: int) -> None:
    """Rewrite the weights of a checkpoint that was saved in one file."""
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    weights = with_drafts(load_file(file), noise, layers)
    save_file(weights, file, metadata={"format": "pt"})
