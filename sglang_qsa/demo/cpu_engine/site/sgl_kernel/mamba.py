"""Functions that SGLang imports on a CPU: gdn_backend.py:184, gdn_triton.py:28.

Names and parameters are those of the call sites.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_qsa.demo.cpu_engine import reference


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor | None,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: Any = None,
) -> torch.Tensor:
    return reference.conv_prefill(
        x,
        weight,
        bias,
        activation,
        conv_states,
        has_initial_state,
        cache_indices,
        query_start_loc,
    )


def causal_conv1d_update_cpu(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    conv_state_indices: torch.Tensor,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    **_links: Any,
) -> torch.Tensor:
    """A decode step [B, C], or with `intermediate_conv_window` a verify step [B, C, D].

    A verify step leaves `conv_states` alone; the window after each draft goes to its
    own place, and SGLang commits that of the last accepted one.
    """
    if intermediate_conv_window is None:
        return reference.conv_decode(
            x, conv_states, weight, bias, activation, conv_state_indices
        )
    assert intermediate_state_indices is not None
    out = torch.empty_like(x)
    rows = intermediate_state_indices.long()
    windows = conv_states[conv_state_indices.long()]
    sequences = torch.arange(len(rows))
    for step in range(x.shape[2]):
        out[:, :, step] = reference.conv_decode(
            x[:, :, step], windows, weight, bias, activation, sequences
        )
        intermediate_conv_window[rows, step] = windows
    return out


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: torch.Tensor,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Prefill; writes the final state back, so no state is returned for it."""
    if head_first or not use_qk_l2norm_in_kernel:
        raise NotImplementedError("token-first layout with normalised keys only")
    out, checkpoints = reference.gated_delta_rule(
        q[0],
        k[0],
        v[0],
        g[0],
        beta[0],
        initial_state,
        initial_state_indices,
        cu_seqlens,
    )
    return out[None], None, checkpoints[None]
