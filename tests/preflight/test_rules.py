"""What can be refused before the model is loaded, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa import launch_rules
from sglang_qsa.demo.processes import HOST, free_port
from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.hooks.routing import ROUTE_DEFAULT
from sglang_qsa.preflight import BACKEND_NAME, check_launch, findings
from tests.pools import CONFIG
from tests.preflight.launches import arguments, hicache, refused

pytestmark = pytest.mark.usefixtures("launch_environment")

ALWAYS: list[tuple[str, Any]] = [("enable_mixed_chunk", True), ("page_size", 128)]
WITH_TIER: list[tuple[str, Any]] = [
    ("disable_radix_cache", True),
    ("disaggregation_mode", "prefill"),
    ("disaggregation_mode", "decode"),
    ("enable_hierarchical_cache", True),
    ("enable_unified_cache_external_linker", True),
    ("speculative_algorithm", "EAGLE"),
    ("enable_dp_attention", True),
    ("attn_dp_size", 2),
    ("attn_cp_size", 2),
    ("dcp_size", 2),
    ("pp_size", 2),
    ("enable_streaming_session", True),
    ("enable_linear_replayssm", True),
    ("enable_linear_replayssm_spec", True),
    ("enable_int8_mamba_checkpoint", True),
    ("enable_page_major_kv_layout", True),
    ("enable_unified_memory", True),
    ("enable_memory_saver", True),
    ("kv_cache_dtype", "fp4_e2m1"),
]


@pytest.fixture
def no_daemon(tmp_path: Path) -> Path:
    """LMCache's config file for a port that nobody listens on."""
    file = tmp_path / "lmcache.yaml"
    file.write_text(f"mp_host: {HOST}\nmp_port: {free_port()}\n")
    return file


WITH_HICACHE = [
    ("speculative_algorithm", "STANDALONE"),
    ("hicache_mem_layout", "layer_first"),
    ("hicache_storage_backend", "simm"),
    ("hicache_storage_backend", "mori"),
]


def test_every_rule_is_tried_here() -> None:
    always = {name for rule in launch_rules.ALWAYS for name in rule.fields}
    rules = (
        launch_rules.NO_LINKER,
        *launch_rules.WITH_BACKEND,
        *launch_rules.WITH_TIER,
        *launch_rules.WITH_LMCACHE,
    )
    with_tier = {name for rule in rules for name in rule.fields}
    with_hicache = {n for rule in launch_rules.WITH_HICACHE for n in rule.fields}
    assert {option for option, _ in WITH_HICACHE} == with_hicache
    assert {name for name, _ in ALWAYS} == always
    assert {name for name, _ in WITH_TIER} == with_tier


@pytest.mark.parametrize(("name", "value"), ALWAYS)
def test_option_that_this_model_cannot_keep(
    model: Path, name: str, value: object
) -> None:
    option = f"--{name.replace('_', '-')}"
    refused(arguments(model, **{name: value}), origin=option, found=str(value))


@pytest.mark.parametrize(("name", "value"), WITH_TIER)
@pytest.mark.parametrize("route", ["default", "named"])
def test_option_that_the_tier_cannot_keep(
    model: Path, name: str, value: object, route: str
) -> None:
    options = {"radix_cache_backend": BACKEND_NAME} if route == "named" else {}
    server_args = arguments(model, enable_lmcache=True, **options, **{name: value})
    refused(server_args, origin=f"--{name.replace('_', '-')}", found=str(value))


@pytest.mark.parametrize(("name", "value"), WITH_TIER)
def test_option_is_fine_without_the_tier(model: Path, name: str, value: object) -> None:
    if name not in launch_rules.NO_LINKER.fields:  # that is a tier
        check_launch(arguments(model, **{name: value}))


def test_case_7_disaggregation_names_what_would_be_lost(model: Path) -> None:
    line = refused(
        arguments(model, enable_lmcache=True, disaggregation_mode="decode"),
        origin="--disaggregation-mode",
    )
    assert all(name in line for name in ("ssm", "conv", "ple_conv", "ple_ngram"))


def test_case_28_mixed_chunk_is_refused_with_its_reason(model: Path) -> None:
    line = refused(arguments(model, enable_mixed_chunk=True))
    assert "the first mixed batch ends a server" in line


def test_speculative_decoding_names_what_would_be_lost(model: Path) -> None:
    line = refused(
        arguments(model, enable_lmcache=True, speculative_algorithm="EAGLE"),
        origin="--speculative-algorithm",
    )
    assert all(name in line for name in ("draft_k", "draft_v", "draft_index"))


def test_unreachable_daemon(
    model: Path, no_daemon: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_QSA_LOOKUP_TIMEOUT_S", "0.2")
    server_args = arguments(
        model, enable_lmcache=True, lmcache_config_file=str(no_daemon)
    )
    line = refused(server_args, origin=f"tcp://{HOST}", found="no answer within 0.2 s")
    assert str(no_daemon) in line


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "No such file"),
        ("chunk_size: 64\n", "mp_host None"),
        ("mp_host: 127.0.0.1\nmp_port: five\n", "mp_port None"),
        ("mp_host: [1,\n", "malformed YAML"),
        ("hello\n", "str"),
    ],
    ids=["missing", "no address", "no port", "malformed", "not a mapping"],
)
def test_lmcache_s_own_config_file(
    model: Path, tmp_path: Path, text: str | None, found: str
) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    server_args = arguments(model, enable_lmcache=True, lmcache_config_file=str(file))
    refused(server_args, origin=str(file), found=found)


def test_backend_without_a_tier(model: Path) -> None:
    """The device tree with planned checkpoints: asks for no daemon, and may draft."""
    server_args = arguments(
        model, radix_cache_backend=BACKEND_NAME, speculative_algorithm="EAGLE"
    )
    assert not any(finding.refused for finding in findings(server_args))


def test_backend_with_host_memory(model: Path) -> None:
    assert not any(finding.refused for finding in findings(hicache(model)))
    stored = hicache(model, hicache_storage_backend="file")
    assert not any(finding.refused for finding in findings(stored))


@pytest.mark.parametrize(("name", "value"), WITH_HICACHE)
def test_option_that_host_memory_cannot_keep(
    model: Path, name: str, value: str
) -> None:
    option = f"--{name.replace('_', '-')}"
    refused(hicache(model, **{name: value}), origin=option, found=value)


def test_backend_for_another_model(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    refused(
        arguments(model, radix_cache_backend=BACKEND_NAME, enable_lmcache=True),
        origin=str(model),
        found="LlamaForCausalLM",
    )


@pytest.mark.parametrize(
    "text", [None, "{", '{"architectures": ["LlamaForCausalLM"]}'], ids=repr
)
def test_other_models_are_not_judged(model: Path, text: str | None) -> None:
    config = model / "config.json"
    config.unlink() if text is None else config.write_text(text)
    options = {"enable_lmcache": True, "enable_mixed_chunk": True}
    assert list(findings(arguments(model, **options))) == []


def test_unreadable_config_of_a_chosen_backend(model: Path) -> None:
    (model / "config.json").write_text("{")
    refused(
        arguments(model, radix_cache_backend=BACKEND_NAME, enable_lmcache=True),
        origin="config.json",
    )


def test_config_with_a_number_missing(model: Path) -> None:
    text = {k: v for k, v in CONFIG["text_config"].items() if k != "head_dim"}
    document = {"architectures": [ARCHITECTURE], "text_config": text}
    (model / "config.json").write_text(json.dumps(document))
    refused(arguments(model, enable_lmcache=True), found="head_dim = None")


def test_tensor_parallel_size_that_does_not_divide(model: Path) -> None:
    refused(arguments(model, enable_lmcache=True, tp_size=3), found="size 3")


def test_hook_that_did_not_apply(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    others = HookRegistry._patched - {ROUTE_DEFAULT.target}
    monkeypatch.setattr(HookRegistry, "_patched", others)
    refused(arguments(model, enable_lmcache=True), found=ROUTE_DEFAULT.id)


def test_good_launch_without_a_tier_asks_no_daemon(model: Path) -> None:
    found = list(findings(arguments(model)))
    assert found
    assert not any(finding.refused for finding in found)
    assert not any("tcp://" in finding.what for finding in found)
