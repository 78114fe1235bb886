"""The MTP layer: it guesses the token after the next one.

Source of its parts and names: sglang/srt/models/qwen4_exp_mtp.py@0.5.23. transformers
has no such layer; its decoder layer is the same as the target's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers.models.qwen4_exp import modeling_qwen4_exp as upstream

CONFIG = {"mtp_num_hidden_layers": 1}
"""What the text part of a checkpoint's config says besides."""

_PREFIX = "mtp."
_WEIGHTS = "model.safetensors"


class Drafts(nn.Module):
    """Parameters have the checkpoint's names, without `mtp.`.

    Args:
        text: the text part of the target's config.
        std: of fresh weights.
    """

    def __init__(self, text: Any, std: float) -> None:
        super().__init__()
        config = copy.deepcopy(text)
        config.num_hidden_layers = 1
        config.layer_types = ["full_attention"]
        config.ple_layer_ids = []
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._streams = config.hc_count
        self.pre_fc_norm_embedding = upstream.Qwen4ExpTextRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = upstream.Qwen4ExpTextRMSNorm(
            hidden * config.hc_count, eps=eps
        )
        self.fc_embedding = nn.Linear(hidden, hidden, bias=False)
        self.fc_hidden = nn.Linear(hidden, hidden, bias=False)
        self.layers = nn.ModuleList([upstream.Qwen4ExpTextDecoderLayer(config, 0)])
        self.hyper_connection_mixer = upstream.Qwen4ExpTextGatedResidual(
            config, use_combine=False
        )
        for parameter in self.parameters():
            # A norm multiplies by 1 more than its weight.
            spread = std if parameter.ndim > 1 else 0.0
            nn.init.normal_(parameter, std=spread)

    def forward(
        self,
        streams: torch.Tensor,
        embeddings: torch.Tensor,
        positions: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """What the target's head turns into guesses.

        Args:
            streams: [batch, tokens, streams × hidden], what the target made of a token.
            embeddings: [batch, tokens, hidden], of the token after each.
            positions: cosines and sines of the tokens.
        Returns:
            [batch, tokens, hidden].
        """
        tokens = streams.shape[1]
        heard = self.pre_fc_norm_hidden(streams).unflatten(-1, (self._streams, -1))
        read = self.fc_embedding(self.pre_fc_norm_embedding(embeddings))
        fused = (read.unsqueeze(-2) + self.fc_hidden(heard)).flatten(-2)
        at = torch.arange(tokens, device=streams.device)
        causal = (at[:, None] >= at).expand(len(streams), 1, tokens, tokens)
        (layer,) = self.layers
        mixed: torch.Tensor = self.hyper_connection_mixer(
            layer(fused, position_embeddings=positions, attention_mask=causal)
        )
        return mixed


def guesses(
    drafts: Drafts, model: Any, streams: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Logits for the third token on, [batch, tokens - 2, vocabulary].

    The target learns nothing from them: its streams, embeddings and head stay as they
    are.
    """
    text = model.model.language_model
    batch, tokens = ids[:, :-2].shape
    at = torch.arange(tokens, device=ids.device).expand(3, batch, tokens)
    embeddings = text.embed_tokens(ids[:, 1:-1]).detach()
    positions = text.rotary_emb(embeddings, at)
    hidden = drafts(streams[:, :-2].detach(), embeddings, positions)
    return functional.linear(hidden, model.lm_head.weight.detach())


def add_to(directory: Path, drafts: Drafts) -> None:
    """Put the layer into a checkpoint that was saved in one file, in bf16."""
    weights = load_file(directory / _WEIGHTS)
    for name, weight in drafts.state_dict().items():
        weights[_PREFIX + name] = weight.to("cpu", torch.bfloat16).contiguous()
    save_file(weights, directory / _WEIGHTS, metadata={"format": "pt"})
