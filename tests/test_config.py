"""Options: environment beats file beats default; anything unclear is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sglang_qsa.config import QsaConfig, load_config
from sglang_qsa.errors import ConfigError
from tests.messages import assert_refusal

FIELDS = {field.name: field.default for field in dataclasses.fields(QsaConfig)}
DURATIONS = [name for name in FIELDS if name.endswith("_s")]


def write(folder: Path, document: object) -> dict[str, str]:
    """Environment that names a config file with this content."""
    file = folder / "qsa.json"
    text = document if isinstance(document, str) else json.dumps(document)
    file.write_text(text, encoding="utf-8")
    return {"SGLANG_QSA_CONFIG": str(file)}


def refused(environ: dict[str, str], *, origin: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ)
    assert_refusal(caught.value, origin=origin, found=found)


def test_nothing_set_gives_the_defaults() -> None:
    assert load_config({}) == QsaConfig()
    assert load_config({"SGLANG_HOST": "1", "PATH": "/bin"}) == QsaConfig()


def test_process_environment_is_the_default_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGLANG_QSA_LOOKUP_TIMEOUT_S", "0.25")
    assert load_config().lookup_timeout_s == 0.25


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_can_be_set_in_both_places(name: str, tmp_path: Path) -> None:
    text = isinstance(FIELDS[name], str)
    in_file, in_env = ("on", "off") if text else (7, "8")
    environ = write(tmp_path, {name: in_file})
    assert getattr(load_config(environ), name) == in_file
    environ[f"SGLANG_QSA_{name.upper()}"] = in_env
    assert getattr(load_config(environ), name) == ("off" if text else 8)


@pytest.mark.parametrize("value", ["yes", "", "ON"])
def test_switches_have_three_positions(value: str, tmp_path: Path) -> None:
    refused(write(tmp_path, {"kernel_topk": value}), origin="kernel_topk", found=value)


@pytest.mark.parametrize("value", [-1, 1.5, True, "1k"])
def test_tokens_are_whole_and_not_negative(value: object, tmp_path: Path) -> None:
    refused(
        write(tmp_path, {"admission_min_tokens": value}),
        origin="admission_min_tokens" if value == -1 else str(tmp_path),
        found=str(value),
    )


@pytest.mark.parametrize("text", ["-1", "1.5", "1k", ""])
def test_tokens_of_the_environment(text: str) -> None:
    variable = "SGLANG_QSA_ADMISSION_MIN_TOKENS"
    origin = "admission_min_tokens" if text == "-1" else variable
    refused({variable: text}, origin=origin, found=text)


def test_environment_replaces_one_field_of_the_file(tmp_path: Path) -> None:
    environ = write(tmp_path, {"lookup_timeout_s": 3, "retrieve_timeout_s": 4})
    environ["SGLANG_QSA_LOOKUP_TIMEOUT_S"] = "1.5"
    config = load_config(environ)
    assert (config.lookup_timeout_s, config.retrieve_timeout_s) == (1.5, 4.0)
    assert config.register_timeout_s == FIELDS["register_timeout_s"]


def test_unknown_key_of_the_file(tmp_path: Path) -> None:
    refused(
        write(tmp_path, {"lookup_timeout": 3}),
        origin=f"SGLANG_QSA_CONFIG={tmp_path}",
        found="unknown option 'lookup_timeout'",
    )


def test_unknown_key_of_the_environment() -> None:
    """A typo must not become the default."""
    refused(
        {"SGLANG_QSA_LOOKUP_TIMEOUT": "3"},
        origin="SGLANG_QSA_LOOKUP_TIMEOUT",
        found="unknown option 'lookup_timeout'",
    )


def test_malformed_json(tmp_path: Path) -> None:
    refused(write(tmp_path, "{"), origin=str(tmp_path), found="malformed JSON")


def test_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "qsa.json"
    file.write_bytes(b"\xff\xfe{}")
    refused({"SGLANG_QSA_CONFIG": str(file)}, origin=str(file), found="malformed JSON")


@pytest.mark.parametrize("document", [[1], "1", "null", '"text"'], ids=repr)
def test_file_that_is_no_object(document: object, tmp_path: Path) -> None:
    refused(write(tmp_path, document), origin=str(tmp_path), found="")


def test_missing_file(tmp_path: Path) -> None:
    refused(
        {"SGLANG_QSA_CONFIG": str(tmp_path / "gone.json")},
        origin="gone.json",
        found="No such file",
    )


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    refused(
        {"SGLANG_QSA_CONFIG": str(tmp_path)}, origin=str(tmp_path), found="directory"
    )


@pytest.mark.parametrize("value", ["soon", "", "2s"])
def test_text_for_a_number_in_the_environment(value: str) -> None:
    refused(
        {"SGLANG_QSA_LOOKUP_TIMEOUT_S": value},
        origin="SGLANG_QSA_LOOKUP_TIMEOUT_S",
        found=repr(value),
    )


@pytest.mark.parametrize("value", ["2", True, None, [2]], ids=repr)
def test_no_number_for_a_number_in_the_file(value: object, tmp_path: Path) -> None:
    refused(
        write(tmp_path, {"lookup_timeout_s": value}),
        origin=str(tmp_path),
        found=f"{value!r} for lookup_timeout_s",
    )


def test_number_for_a_text_in_the_file(tmp_path: Path) -> None:
    refused(
        write(tmp_path, {"weights_fingerprint": 5}), origin=str(tmp_path), found="5"
    )


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_duration_that_is_none(name: str, value: str) -> None:
    refused({f"SGLANG_QSA_{name.upper()}": value}, origin=f"option {name}", found="")


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", ["inf", "1e300"])
def test_endless_duration(name: str, value: str) -> None:
    """A time-out without end is the stall that time-outs are there to prevent."""
    refused({f"SGLANG_QSA_{name.upper()}": value}, origin=f"option {name}", found="")
