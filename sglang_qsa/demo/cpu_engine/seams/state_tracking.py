"""Copy a decoding request's recurrent state to its checkpoint slot, in PyTorch.

mamba_state_scatter_triton.py:192 and :914 launch a Triton kernel. They run when a
decode step reaches a multiple of the tracking interval. Lines 312 and 487 do so after
each verify step: they commit the states of the last accepted draft, and those of the
draft that reached the multiple.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _track_all_layers(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    track_mask: torch.Tensor,
    track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy the masked rows' slots; both pools are [layers, slots, ...]."""
    if check_freed_slots:
        raise NotImplementedError("unified memory is not part of the CPU engine")
    rows = track_mask[:batch_size].bool()
    source = cache_indices[:batch_size][rows].long()
    destination = track_indices[:batch_size][rows].long()
    if len(source):
        conv_states[:, destination] = conv_states[:, source]
        ssm_states[:, destination] = ssm_states[:, source]


def _track_one_layer(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    _track_all_layers(
        conv_states[None],
        ssm_states[None],
        cache_indices,
        mamba_track_mask,
        mamba_track_indices,
        batch_size,
        check_freed_slots,
    )


def _commit(
    destination: torch.Tensor,
    after_steps: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    """Take each request's state after one of its drafts.

    Args:
        destination: [layers, slots, ...].
        after_steps: [layers, rows, drafts, ...].
        steps: [requests], the draft; where it is negative nothing is taken.
        rows: [requests], of `after_steps`; the requests in order by default.
    """
    taken = (steps >= 0).nonzero()[:, 0]
    source = taken if rows is None else rows[taken].long()
    destination[:, slots[taken].long()] = after_steps[:, source, steps[taken].long()]


def apply(module: ModuleType) -> None:
    module.track_mamba_states_all_layers = _track_all_layers  # type: ignore[attr-defined]
    module.track_mamba_states_if_needed = _track_one_layer  # type: ignore[attr-defined]
    module.fused_mamba_state_scatter_with_mask = _commit  # type: ignore[attr-defined]
    module.fused_conv_window_scatter_with_mask = _commit  # type: ignore[attr-defined]
    # Its one launch for several kinds of windows would be a third place to patch.
    module._conv_multi_eligible = lambda _pairs: False  # type: ignore[attr-defined]
