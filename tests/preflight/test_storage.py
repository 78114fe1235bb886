"""What stands behind host memory, and the linker: refused or left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa import launch_rules
from sglang_qsa.preflight import findings
from tests.preflight.launches import arguments, hicache, refused

pytestmark = pytest.mark.usefixtures("launch_environment")

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
