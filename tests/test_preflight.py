"""What can be refused before the model is loaded, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa import launch_rules
from sglang_qsa.demo.processes import HOST, free_port
from sglang_qsa.errors import ConfigError, UpstreamMismatch
from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.hooks.routing import ROUTE_DEFAULT
from sglang_qsa.preflight import BACKEND_NAME, check_launch, findings
from tests.messages import assert_refusal
from tests.pools import CONFIG
from tests.upstream_hooks import hooks_in_place

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


@pytest.fixture(scope="module")
def launch_environment(sglang_runtime: None) -> Iterator[None]:
    with hooks_in_place():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def no_daemon(tmp_path: Path) -> Path:
    """LMCache's config file for a port that nobody listens on."""
    file = tmp_path / "lmcache.yaml"
    file.write_text(f"mp_host: {HOST}\nmp_port: {free_port()}\n")
    return file


def arguments(model: Path, **options: Any) -> Any:
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(model_path=str(model), device="cpu", **options)


def refused(server_args: Any, **parts: str) -> str:
    with pytest.raises((ConfigError, UpstreamMismatch)) as caught:
        check_launch(server_args)
    assert_refusal(caught.value, **parts)
    return str(caught.value)


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


def hicache(model: Path, **options: Any) -> Any:
    return arguments(
        model,
        radix_cache_backend=BACKEND_NAME,
        enable_hierarchical_cache=True,
        **options,
    )


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


RECORDS = {
    "class_name": "RecordStorage",
    "directory": "/data",
    "hicache_storage_pass_prefix_keys": True,
}


def record_store(model: Path, text: str, layout: str = "page_first_direct") -> Any:
    return hicache(
        model,
        hicache_storage_backend="dynamic",
        hicache_storage_backend_extra_config=text,
        hicache_mem_layout=layout,
    )


def test_record_store(model: Path) -> None:
    server_args = record_store(model, json.dumps(RECORDS))
    assert not any(finding.refused for finding in findings(server_args))


@pytest.mark.parametrize("left_out", ["directory", "hicache_storage_pass_prefix_keys"])
def test_record_store_with_something_left_out(model: Path, left_out: str) -> None:
    extra = {key: value for key, value in RECORDS.items() if key != left_out}
    refused(record_store(model, json.dumps(extra)), origin=left_out, found="None")


def test_record_store_over_another_layout(model: Path) -> None:
    server_args = record_store(model, json.dumps(RECORDS), layout="page_first")
    refused(server_args, origin="--hicache-mem-layout", found="page_first")


def test_record_store_with_malformed_json(model: Path) -> None:
    refused(record_store(model, "{"), found="malformed JSON")


@pytest.mark.parametrize("text", ['{"class_name": "Another"}', "@file.yaml"])
def test_other_storage_is_not_judged(model: Path, text: str) -> None:
    server_args = record_store(model, text, layout="page_first")
    assert not any(finding.refused for finding in findings(server_args))


@pytest.mark.parametrize("name", ["mooncake", "nixl"])
def test_zero_copy_backend_without_its_package(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server_args = hicache(
        model,
        hicache_storage_backend=name,
        hicache_storage_backend_extra_config='{"use_direct_io": false}',
    )
    monkeypatch.setattr(launch_rules, "find_spec", lambda _name: object())
    assert not any(finding.refused for finding in findings(server_args))
    monkeypatch.setattr(launch_rules, "find_spec", lambda _name: None)
    refused(server_args, found=f"no package {name}")


@pytest.mark.parametrize("name", ["mooncake", "nixl"])
def test_zero_copy_backend_with_drafts(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(launch_rules, "find_spec", lambda _name: object())
    server_args = hicache(
        model, hicache_storage_backend=name, speculative_algorithm="NEXTN"
    )
    refused(server_args, origin=f"backend {name}, --speculative-algorithm")


@pytest.mark.parametrize("text", ["{}", '{"use_direct_io": true}'])
def test_nixl_with_direct_io(
    model: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Which is its default."""
    monkeypatch.setattr(launch_rules, "find_spec", lambda _name: object())
    server_args = hicache(
        model,
        hicache_storage_backend="nixl",
        hicache_storage_backend_extra_config=text,
    )
    refused(server_args, origin="use_direct_io")


def test_extra_config_that_is_no_object(model: Path) -> None:
    refused(record_store(model, "[]"), found="list")


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_drafts_with_host_memory(model: Path, algorithm: str) -> None:
    server_args = hicache(model, speculative_algorithm=algorithm)
    assert not any(finding.refused for finding in findings(server_args))
    plain = [str(f.found) for f in findings(hicache(model)) if "layout of" in f.what]
    drafts = [str(f.found) for f in findings(server_args) if "layout of" in f.what]
    assert plain != drafts


LINKER: dict[str, Any] = {
    "linker_module_path": "sglang_qsa.tiers.linker.linker",
    "linker": "RecordLinker",
    "linker_extra_config": {"directory": "/data"},
}


def linked(model: Path, config: Any, backend: str = "dynamic", **options: Any) -> Any:
    return arguments(
        model,
        enable_unified_cache_external_linker=True,
        unified_cache_external_linker_backend=backend,
        unified_cache_external_linker_config=config,
        **options,
    )


def test_linker(model: Path) -> None:
    assert not any(finding.refused for finding in findings(linked(model, LINKER)))


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        (None, "mooncake"),
        (LINKER, "mooncake"),
        (LINKER | {"linker": "Another"}, "dynamic"),
    ],
)
def test_linker_of_somebody_else(model: Path, config: Any, backend: str) -> None:
    server_args = linked(model, config, backend)
    origin = "--unified-cache-external-linker-backend"
    refused(server_args, origin=origin, found=backend)


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({}, "directory None"),
        ({"directory": ""}, "directory ''"),
        ({"directory": "/data", "budget_gb": 0}, "budget_gb 0"),
        ({"directory": "/data", "budget_gb": True}, "budget_gb True"),
        ({"directory": "/data", "budget": 1}, "['budget']"),
    ],
)
def test_linker_with_wrong_options(model: Path, extra: Any, found: str) -> None:
    config = LINKER | {"linker_extra_config": extra}
    refused(linked(model, config), origin="linker_extra_config", found=found)


@pytest.mark.parametrize(
    ("name", "value"),
    [("speculative_algorithm", "EAGLE"), ("disaggregation_mode", "prefill")],
)
def test_option_that_the_linker_cannot_keep(model: Path, name: str, value: str) -> None:
    server_args = linked(model, LINKER, **{name: value})
    refused(server_args, origin=f"--{name.replace('_', '-')}", found=value)


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
