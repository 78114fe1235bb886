"""Where forwards cannot give second states none are planned, and why is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

from sglang_qsa import backend
from sglang_qsa.config import QsaConfig
from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks import second_forward

CONTEXT = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=None))


def runner(**kernel: bool) -> Any:
    facts = {"uses_state_checkpoints": False, "supports_track_state_snapshot": False}
    linear = GDNAttnBackend.__new__(GDNAttnBackend)
    extend = SimpleNamespace(**facts | kernel)
    linear.kernel_dispatcher = SimpleNamespace(extend_kernel=extend)
    return SimpleNamespace(attn_backend=SimpleNamespace(linear_attn_backend=linear))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What upstream says of a plain server, to be changed."""
    served = SimpleNamespace(
        graph=SimpleNamespace(
            cuda_graph_config=SimpleNamespace(
                prefill=SimpleNamespace(backend="disabled")
            )
        ),
        overlap=SimpleNamespace(enable_two_batch_overlap=False),
        mamba=SimpleNamespace(
            enable_int8_mamba_checkpoint=False, enable_mamba_extra_buffer_lazy=False
        ),
        parallel=SimpleNamespace(attn_cp_size=1, attn_dp_size=1, pp_size=1),
    )
    context = "sglang.srt.runtime_context"
    monkeypatch.setattr(f"{context}.get_exec", lambda: served)
    monkeypatch.setattr(f"{context}.get_parallel", lambda: served.parallel)
    return served


def test_a_plain_server_has_none(served: Any) -> None:
    assert second_forward.obstacle(runner()) == ""


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("graph.cuda_graph_config.prefill.backend", "breakable", "prefill graphs"),
        ("overlap.enable_two_batch_overlap", True, "two-batch overlap"),
        ("mamba.enable_int8_mamba_checkpoint", True, "int8"),
        ("mamba.enable_mamba_extra_buffer_lazy", True, "lazy"),
        ("parallel.attn_cp_size", 2, "context parallel"),
        ("parallel.attn_dp_size", 2, "DP"),
        ("parallel.pp_size", 2, "pipeline"),
    ],
)
def test_each_setting_is_one(served: Any, path: str, value: Any, told: str) -> None:
    *owners, name = path.split(".")
    owner = served
    for each in owners:
        owner = getattr(owner, each)
    setattr(owner, name, value)
    assert told in second_forward.obstacle(runner())


@pytest.mark.parametrize(
    "fact", ["uses_state_checkpoints", "supports_track_state_snapshot"]
)
def test_each_kernel_without_inner_states_is_one(served: Any, fact: str) -> None:
    assert "prefill kernel" in second_forward.obstacle(runner(**{fact: True}))


def test_another_backend_is_one(served: Any) -> None:
    other = SimpleNamespace(attn_backend=SimpleNamespace())
    assert "linear attention by" in second_forward.obstacle(other)


@pytest.mark.parametrize("found", ["", "two-batch overlap"])
@pytest.mark.parametrize("switch", ["auto", "on", "off"])
def test_what_the_option_makes_of_it(
    found: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = []
    monkeypatch.setattr(second_forward, "obstacle", lambda _runner: found)
    monkeypatch.setattr(second_forward, "install", lambda: installed.append(1))
    options = QsaConfig(second_state=switch)
    if found and switch == "on":
        with pytest.raises(ConfigError, match="found two-batch overlap; wanted"):
            backend._snapshots(CONTEXT, options)
        return
    possible = not found and switch != "off"
    assert backend._snapshots(CONTEXT, options) == (2 if possible else 1)
    assert bool(installed) == possible
