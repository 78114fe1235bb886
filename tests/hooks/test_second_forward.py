"""The rows that a forward gets for second states are those upstream would take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.mamba.prefill_track_metadata import (
    build_prefill_track_plan,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_qsa.hooks import second_forward
from sglang_qsa.hooks.second import Part, SecondState

CHUNK, CONV = 64, 3
PREFIXES, LENGTHS = [0, 192, 64, 0], [1000, 400, 64, 129]
SECONDS = {0: 640, 1: 192 + 128, 3: 64}
"""Depth by row; rows 0 and 1 go on behind it, row 2 has none."""


@pytest.fixture(autouse=True)
def _chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "sglang.srt.runtime_context.mamba_cache_chunk_size"
    monkeypatch.setattr(target, lambda: CHUNK)


def batch(mode: ForwardMode = ForwardMode.EXTEND) -> Any:
    reqs = [SimpleNamespace() for _ in PREFIXES]
    for row, depth in SECONDS.items():
        state = SecondState(PREFIXES[row], depth, torch.tensor([100 + row]))
        reqs[row]._qsa_second = state
    return SimpleNamespace(
        reqs=reqs, prefix_lens=PREFIXES, extend_lens=LENGTHS, forward_mode=mode
    )


def forward_of(
    batch: Any, tracked: list[bool] | None = None, *, draft: bool = False
) -> Any:
    def init_new(_cls: type, _batch: Any, _runner: Any) -> Any:
        mask = [True] * len(PREFIXES) if tracked is None else tracked
        return SimpleNamespace(mamba_prefill_track_mask_cpu=mask)

    runner = SimpleNamespace(is_draft_worker=draft)
    return second_forward.carry(init_new, object, batch, runner)


def upstream_h_rows(depths: dict[int, int]) -> list[int]:
    """Where upstream finds the states at these depths, were they its own."""
    plan = build_prefill_track_plan(
        [row in depths for row in range(len(PREFIXES))],
        # One more, as `_force_track_h` of sglang 0.5.23 for a state inside a forward.
        [depths.get(row, -2) + 1 for row in range(len(PREFIXES))],
        LENGTHS,
        PREFIXES,
        CHUNK,
        mamba2=False,
    )
    assert plan.h_rows == sorted(depths)
    return list(plan.h_src)


def test_rows_of_a_batch() -> None:
    second = second_forward.carried(forward_of(batch()))
    assert second is not None
    assert second.rows == [0, 1, 3]
    assert second.slots.tolist() == [100, 101, 103]
    assert second.chunks == upstream_h_rows(SECONDS)
    starts = [0, 1000, 1000 + 400 + 64]
    ends = [starts[0] + 640, starts[1] + 128, starts[2] + 64]
    wanted = [[end - 3, end - 2, end - 1] for end in ends]
    assert second.windows(3).tolist() == wanted


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
def test_other_forwards_carry_none(mode: ForwardMode) -> None:
    assert second_forward.carried(forward_of(batch(mode))) is None


def test_a_draft_model_carries_none() -> None:
    """Its tokens are one on, and its pools are not those of the states."""
    assert second_forward.carried(forward_of(batch(), draft=True)) is None


def test_a_forward_from_elsewhere_carries_none() -> None:
    """A state stays with its request until it is published; the next forward of the
    request starts behind it."""
    later = batch()
    later.prefix_lens = [prefix + 64 for prefix in PREFIXES]
    assert second_forward.carried(forward_of(later)) is None
    assert second_forward.carried(forward_of(batch(), [])) is None


def test_a_padded_batch_fills_nothing() -> None:
    """Rows that upstream added make a list of its own: what it means is not known."""
    forward = forward_of(batch())
    padded = [*forward.mamba_prefill_track_mask_cpu, False]
    forward.mamba_prefill_track_mask_cpu = padded
    assert second_forward.carried(forward) is None


def test_upstreams_copies_get_the_rows() -> None:
    forward = forward_of(batch())
    states = [req._qsa_second for req in batch().reqs if hasattr(req, "_qsa_second")]
    metadata = SimpleNamespace(
        track_ssm_h_src=torch.tensor([7]),
        track_ssm_h_dst=torch.tensor([1]),
        track_conv_indices=torch.tensor([[1, 2, 3]], dtype=torch.int32),
        conv_states_mask_indices=torch.tensor([1]),
    )
    backend = SimpleNamespace(
        forward_metadata=metadata,
        conv_states_shape=(8, CONV),
        _translate_mamba_indices=lambda slots: slots + 1000,
    )
    second_forward.gdn_rows(lambda _backend, _forward: None, backend, forward)
    assert metadata.track_ssm_h_src.tolist() == [7, *upstream_h_rows(SECONDS)]
    slots = [1000 + int(state.slot) for state in states]
    assert metadata.track_ssm_h_dst.tolist() == [1, *slots]
    assert metadata.conv_states_mask_indices.tolist() == [1, *slots]
    assert metadata.track_conv_indices.dtype == torch.int32
    assert metadata.track_conv_indices.shape == (4, CONV)
    second = second_forward.carried(forward)
    assert second is not None
    assert all(state.filled == {Part.GDN} for state in second.states)
