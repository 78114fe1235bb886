"""Operators that SGLang reaches as `torch.ops.sgl_kernel.<name>` on a CPU.

qwen3_5.py:284-297, gdn_backend.py:188 and gdn_triton.py:32. Names and parameters
are those of the call sites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_qsa.demo.cpu_engine import reference

_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def _operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare `schema`, named like the decorated function, and implement it."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _library.define(f"{function.__name__}{schema}")
        _library.impl(function.__name__, function, "CPU")
        return function

    return register


@_operator("(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)")
def fused_gdn_gating_cpu(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.gdn_gates(A_log, a, b, dt_bias)


@_operator(
    "(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, "
    "Tensor(a!) initial_state_source, Tensor initial_state_indices, "
    "Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, float softplus_beta=1.0, "
    "float softplus_threshold=20.0, bool is_kda=False, "
    "bool disable_state_update=False, "
    "Tensor(b!)? intermediate_states_buffer=None, "
    "Tensor? intermediate_state_indices=None, int? cache_steps=None, "
    "Tensor? retrieve_parent_token=None) -> Tensor"
)
def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
) -> torch.Tensor:
    """A decode step; with `disable_state_update` a verify step of a chain.

    A verify step leaves the states alone and puts the one after each draft in
    `intermediate_states_buffer` [rows, steps, G, V, K].
    """
    if is_kda or retrieve_parent_token is not None:
        raise NotImplementedError("the CPU engine has GDN and chains of drafts only")
    value_heads = v.shape[2]
    log_decay, beta = reference.gdn_gates(
        A_log, a.reshape(-1, value_heads), b.reshape(-1, value_heads), dt_bias
    )
    tokens = (q[0], k[0], v[0], log_decay[0], beta[0])
    if intermediate_states_buffer is not None:
        assert disable_state_update
        assert intermediate_state_indices is not None
        states = initial_state_source[initial_state_indices.long()]
        rows = intermediate_state_indices[: len(states)].long()
        out = reference.gated_delta_steps(
            tokens, states, intermediate_states_buffer, rows
        )
        return out[None]
    out, _ = reference.gated_delta_rule(
        *tokens, initial_state_source, initial_state_indices, cu_seqlens
    )
    return out[None]


@_operator("(Tensor(a!) x, Tensor gate) -> ()")
def fused_sigmoid_mul_cpu(x: torch.Tensor, gate: torch.Tensor) -> None:
    x.mul_(gate.reshape(x.shape).sigmoid())


@_operator(
    "(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float eps, int head_dim) "
    "-> (Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        reference.gemma_rms_norm(q, q_weight, eps, head_dim),
        reference.gemma_rms_norm(k, k_weight, eps, head_dim),
    )


@_operator(
    "(Tensor q_gate, Tensor k, Tensor q_weight, Tensor k_weight, float eps, "
    "int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each head's query and output gate lie side by side in `q_gate`."""
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).split(head_dim, dim=-1)
    return (
        reference.gemma_rms_norm(q, q_weight, eps, head_dim),
        reference.gemma_rms_norm(k, k_weight, eps, head_dim),
        gate.reshape(-1, head_dim).contiguous(),
    )


@_operator(
    "(Tensor mixed_qkvz, Tensor mixed_ba, int num_heads_qk, int num_heads_v, "
    "int head_qk, int head_v) -> (Tensor, Tensor, Tensor, Tensor)"
)
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    qkv_width = 2 * num_heads_qk * head_qk + num_heads_v * head_v
    qkv, z = mixed_qkvz.tensor_split([qkv_width], dim=1)
    b, a = mixed_ba.tensor_split([num_heads_v], dim=1)
    return (
        qkv.contiguous(),
        z.reshape(-1, num_heads_v, head_v).contiguous(),
        b.contiguous(),
        a.contiguous(),
    )
