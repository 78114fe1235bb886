"""Which kernels a process gets, and that they are where SGLang looks for them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.hooks import kernels, qsa_ops
from sglang_qsa.hooks.kernels import SCORE, SCORE_ROWS, SPARSE_DECODE, TOPK
from sglang_qsa_kernels.score import tiles as score_tiles
from sglang_qsa_kernels.sparse_decode import tiles as decode_tiles

BINDINGS = (TOPK, SCORE, SCORE_ROWS, SPARSE_DECODE)

pytestmark = pytest.mark.usefixtures("sglang_runtime")


@pytest.fixture(autouse=True)
def originals(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Every binding is upstream's before and after; no GPU is asked for its name."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a GPU")
    monkeypatch.setattr(qsa_ops, "warm_up", lambda _device: None)
    for op in ("TOPK", "SCORE", "SPARSE_DECODE"):
        monkeypatch.setenv(f"SGLANG_QSA_KERNEL_{op}", "auto")
    found = {binding.id: pkgutil.resolve_name(binding.target) for binding in BINDINGS}
    yield found
    for binding in BINDINGS:
        path, _, name = binding.target.rpartition(".")
        setattr(pkgutil.resolve_name(path), name, found[binding.id])
    kernels._install_once.cache_clear()


def measured(monkeypatch: pytest.MonkeyPatch, *, answer: bool) -> None:
    for module in (score_tiles, decode_tiles):
        monkeypatch.setattr(module, "is_measured", lambda _device: answer)


def runner(device: str = "cuda", architecture: str = ARCHITECTURE) -> Any:
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture]))
    return SimpleNamespace(device=device, gpu_id=0, model_config=config)


def bound(originals: dict[str, Any]) -> set[str]:
    return {
        binding.id
        for binding in BINDINGS
        if pkgutil.resolve_name(binding.target) is not originals[binding.id]
    }


def test_gpu_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, originals: dict[str, Any]
) -> None:
    measured(monkeypatch, answer=True)
    kernels.install(runner())
    assert bound(originals) == {binding.id for binding in BINDINGS}
    select = pkgutil.resolve_name(SCORE.target)
    assert select is qsa_ops.select_decode_tokens


def test_other_gpus_get_the_exact_selection_alone(
    monkeypatch: pytest.MonkeyPatch, originals: dict[str, Any]
) -> None:
    measured(monkeypatch, answer=False)
    kernels.install(runner())
    assert bound(originals) == {TOPK.id}


@pytest.mark.parametrize(
    "other", [runner(device="cpu"), runner(architecture="LlamaForCausalLM")]
)
def test_nothing_for_other_devices_and_models(
    other: Any, originals: dict[str, Any]
) -> None:
    kernels.install(other)
    assert bound(originals) == set()


def test_auto_is_the_default(
    monkeypatch: pytest.MonkeyPatch, originals: dict[str, Any]
) -> None:
    measured(monkeypatch, answer=True)
    for op in ("TOPK", "SCORE", "SPARSE_DECODE"):
        monkeypatch.delenv(f"SGLANG_QSA_KERNEL_{op}")
    kernels.install(runner())
    assert bound(originals) == {binding.id for binding in BINDINGS}


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_selection_is_compiled_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    devices: list[torch.device] = []
    measured(monkeypatch, answer=True)
    monkeypatch.setattr(qsa_ops, "warm_up", devices.append)
    monkeypatch.setenv("SGLANG_QSA_KERNEL_TOPK", switch)
    kernels.install(runner())
    assert devices == ([torch.device("cuda", 0)] if switch == "on" else [])


def test_every_combination_of_strides_is_compiled() -> None:
    """As `topk` lays out maxima: a value for every 16 blocks of rows above 8,192."""

    def special(stride: int) -> bool:
        return stride % 16 == 0

    found = {
        (special(width), special(-(-width // 16)) if width > 8192 else None)
        for width in qsa_ops.PREFILL_WIDTHS
    }
    long_rows = {(a, b) for a in (True, False) for b in (True, False)}
    assert found == long_rows | {(True, None), (False, None)}


def test_all_off_binds_nothing(
    monkeypatch: pytest.MonkeyPatch, originals: dict[str, Any]
) -> None:
    measured(monkeypatch, answer=True)
    for op in ("TOPK", "SCORE", "SPARSE_DECODE"):
        monkeypatch.setenv(f"SGLANG_QSA_KERNEL_{op}", "off")
    kernels.install(runner())
    assert bound(originals) == set()


@pytest.mark.parametrize("op", ["topk", "score", "sparse_decode"])
@pytest.mark.parametrize("switch", ["on", "off"])
def test_switches(monkeypatch: pytest.MonkeyPatch, op: str, switch: str) -> None:
    measured(monkeypatch, answer=switch == "off")
    monkeypatch.setenv(f"SGLANG_QSA_KERNEL_{op.upper()}", switch)
    assert kernels.choose(torch.device("cpu"))[op] is (switch == "on")


def test_score_needs_our_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, answer=True)
    monkeypatch.setenv("SGLANG_QSA_KERNEL_TOPK", "off")
    chosen = kernels.choose(torch.device("cpu"))
    assert chosen == {"topk": False, "score": False, "sparse_decode": True}


def test_wrapped_names_know_the_original(
    monkeypatch: pytest.MonkeyPatch, originals: dict[str, Any]
) -> None:
    measured(monkeypatch, answer=True)
    kernels.install(runner())
    for binding in (TOPK, SCORE_ROWS, SPARSE_DECODE):
        now = pkgutil.resolve_name(binding.target)
        assert now.__wrapped__ is originals[binding.id]


def test_name_that_upstream_does_not_have(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line and exit code 2, like any other refusal of a scheduler process."""
    measured(monkeypatch, answer=True)
    path, _, name = SPARSE_DECODE.target.rpartition(".")
    monkeypatch.delattr(pkgutil.resolve_name(path), name)
    with pytest.raises(SystemExit) as exit_:
        kernels.install(runner())
    assert exit_.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"binding {SPARSE_DECODE.id}: found no {name}" in line
