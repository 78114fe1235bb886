"""`sglang-qsa layout`: figures for people and for machines, refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa.cli import main
from sglang_qsa.layout import plane_as_dict
from tests.deployments import CONFIG_FILE, DEPLOYMENTS, layout_of

FLAGS = {"default": [], "tp2": ["--tp-size", "2"], "draft": ["--draft"]}


def layout(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["layout", str(CONFIG_FILE), *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", FLAGS)
def test_json_is_the_layout(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = layout_of(DEPLOYMENTS[name])
    assert layout(capsys, *FLAGS[name]) == {
        "layout_id": wanted.layout_id,
        "token_bytes": wanted.token_bytes,
        "page_bytes": wanted.page_bytes,
        "checkpoint_bytes": wanted.checkpoint_bytes,
        "planes": json.loads(json.dumps([plane_as_dict(p) for p in wanted.planes])),
    }


@pytest.mark.parametrize(
    ("flags", "checkpoint_bytes"),
    [
        ([], 115_642_384),
        (["--mamba-ssm-dtype", "bfloat16"], 59_019_280),
        (["--tp-size", "2"], 57_913_360),
        (["--tp-size", "4"], 29_048_848),
    ],
)
def test_published_checkpoint_sizes(
    flags: list[str], checkpoint_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert layout(capsys, *flags)["checkpoint_bytes"] == checkpoint_bytes


def test_dtypes_of_the_planes(capsys: pytest.CaptureFixture[str]) -> None:
    found = layout(capsys, "--kv-cache-dtype", "fp8_e4m3", "--index-dtype", "fp8_e4m3")
    dtypes = {plane["name"]: plane["dtype"] for plane in found["planes"]}
    assert dtypes["k"] == dtypes["v"] == dtypes["index"] == "float8_e4m3"


def test_table_names_every_plane(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", str(CONFIG_FILE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = layout_of(DEPLOYMENTS["default"])
    for plane in wanted.planes:
        (line,) = [line for line in lines if line.split()[:1] == [plane.name]]
        assert line.endswith(f" {plane.record_bytes:,}")
    assert any(wanted.layout_id in line for line in lines)
    assert any("1,622,016" in line for line in lines)
    assert any("115,642,384" in line for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["gone.json"],
        ["other.json"],
        [str(CONFIG_FILE), "--tp-size", "5"],
        [str(CONFIG_FILE), "--kv-cache-dtype", "int4"],
    ],
)
def test_refusal_is_one_line_and_exit_code_two(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert main(["layout", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("sglang-qsa: ")
    assert "; wanted " in line
