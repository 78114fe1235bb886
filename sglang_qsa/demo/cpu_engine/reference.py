"""The model's CPU operators in plain PyTorch, written for clarity.

All arithmetic is fp32; results take the dtype of the input. Shape legend:
T tokens, H key heads, G value heads, K key dim, V value dim, C channels,
W convolution width, S state slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F

CHUNK_TOKENS = 64
"""Grid of the states that the chunked kernels hand back for checkpoints."""


def gated_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor | None,
    eps: float,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    """RMS norm over the last dim, multiplied by the activated gate before or after."""
    y = x.float()
    factor = None if gate is None else _activate(gate.float(), activation)
    if factor is not None and not norm_before_gate:
        y = y * factor
    y = _rms(y, eps) * weight.float()
    if factor is not None and norm_before_gate:
        y = y * factor
    return y.to(x.dtype)


def gemma_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, head_dim: int
) -> torch.Tensor:
    """RMS norm of each head with a weight stored around zero: [T * heads, head_dim]."""
    heads = x.reshape(-1, head_dim)
    return (_rms(heads.float(), eps) * (1 + weight.float())).to(x.dtype)


def conv_prefill(
    x_CT: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor | None,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> torch.Tensor:
    """Causal depthwise convolution of packed sequences.

    Args:
        x_CT: [C, T], sequences back to back as `query_start_loc` says.
        conv_states: [S, C, W - 1], read where `has_initial_state`, always written.
    Returns:
        [C, T].
    """
    channels = x_CT.shape[0]
    kernel = weight.reshape(channels, 1, -1).float()
    fp32_bias = None if bias is None else bias.float()
    out = torch.empty_like(x_CT)
    for sequence, start, end in _sequences(query_start_loc):
        slot = int(cache_indices[sequence])
        window = conv_states[slot]
        if has_initial_state is None or not bool(has_initial_state[sequence]):
            window = torch.zeros_like(window)
        tokens = torch.cat([window.to(x_CT.dtype), x_CT[:, start:end]], dim=1)
        y = F.conv1d(tokens.float()[None], kernel, fp32_bias, groups=channels)[0]
        out[:, start:end] = _activate(y, activation).to(out.dtype)
        conv_states[slot] = tokens[:, -window.shape[1] :]
    return out


def conv_decode(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    slots: torch.Tensor,
) -> torch.Tensor:
    """One token per sequence: x is [B, C]; `conv_states[slots]` moves on by one."""
    kernel = weight.reshape(x.shape[1], -1).float()
    window = conv_states[slots.long()]
    tokens = torch.cat([window, x[:, :, None].to(window.dtype)], dim=-1)
    y = (tokens.float() * kernel).sum(-1)
    if bias is not None:
        y = y + bias.float()
    conv_states[slots.long()] = tokens[..., 1:]
    return _activate(y, activation).to(x.dtype)


def gdn_gates(
    a_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay (fp32) and write strength (dtype of `b`), both [1, T, G]."""
    decay = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid().to(b.dtype)[None]


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of Gated DeltaNet, token by token, over packed sequences.

    Args:
        q, k: [T, H, K], normalised here. v: [T, G, V]. log_decay, beta: [T, G].
        states: [S, G, V, K], read and written at `slots`.
    Returns:
        Outputs [T, G, V], and the state before every chunk of each sequence
        [chunks, G, V, K] in fp32.
    """
    out = torch.empty_like(v)
    checkpoints: list[torch.Tensor] = []
    for sequence, start, end in _sequences(query_start_loc):
        slot = int(slots[sequence])
        span = slice(start, end)
        outputs, state, before_chunks = _recurrence(
            q[span], k[span], v[span], log_decay[span], beta[span], states[slot].float()
        )
        out[span] = outputs.to(v.dtype)
        states[slot] = state.to(states.dtype)
        checkpoints += before_chunks
    return out, torch.stack(checkpoints)


def gated_delta_steps(
    tokens: tuple[torch.Tensor, ...],
    states: torch.Tensor,
    after_steps: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Steps of decoding, one token after the other, of sequences of one length.

    Args:
        tokens: `gated_delta_rule`'s first five, sequences back to back.
        states: [sequences, G, V, K], written.
        after_steps: [rows, steps, G, V, K], gets the state after each token.
        rows: [sequences], into `after_steps`.
    Returns:
        Outputs [T, G, V].
    """
    sequences = torch.arange(len(states) + 1)
    steps = [part.unflatten(0, (len(states), -1)) for part in tokens]
    outputs: list[torch.Tensor] = []
    for step in range(steps[0].shape[1]):
        q, k, v, log_decay, beta = (part[:, step] for part in steps)
        out, _ = gated_delta_rule(
            q, k, v, log_decay, beta, states, sequences[:-1], sequences
        )
        after_steps[rows, step] = states.to(after_steps.dtype)
        outputs.append(out)
    return torch.stack(outputs, dim=1).flatten(0, 1)


def _recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    groups = v.shape[1] // q.shape[1]
    scale = q.shape[-1] ** -0.5
    # [T, G, K, 1]: a matrix product with the state per value head.
    q_cols = (_unit(q) * scale).repeat_interleave(groups, dim=1).unsqueeze(-1)
    k_cols = _unit(k).repeat_interleave(groups, dim=1).unsqueeze(-1)
    k_rows = k_cols.transpose(-1, -2)
    values = v.float().unsqueeze(-1)
    decay = log_decay.float().exp()[..., None, None]
    strength = beta.float()[..., None, None]
    outputs: list[torch.Tensor] = []
    before_chunks: list[torch.Tensor] = []
    for token in range(len(q)):
        if token % CHUNK_TOKENS == 0:
            before_chunks.append(state)
        state = state * decay[token]
        error = values[token] - torch.bmm(state, k_cols[token])
        state = torch.baddbmm(state, strength[token] * error, k_rows[token])
        outputs.append(torch.bmm(state, q_cols[token]))
    return torch.stack(outputs).squeeze(-1), state, before_chunks


def _sequences(query_start_loc: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield (index, start, end) of every sequence with at least one token."""
    bounds = query_start_loc.tolist()
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end > start:
            yield index, start, end


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _unit(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6)


def _activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    if activation in ("silu", "swish"):
        return F.silu(x)
    if activation == "sigmoid":
        return x.sigmoid()
    raise NotImplementedError(f"activation {activation!r}")
