"""The manifest, the hooks, the diffs and the installed upstream say the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sglang_qsa import manifest
from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks import HOOKS
from sglang_qsa.manifest import PatchRecord, load_manifest, parse_manifest

ROOT = Path(__file__).parents[2]
RECORDS = load_manifest()
RECORD = {
    "id": "decode-strictly",
    "kind": "hook",
    "target": "json.decoder.JSONDecoder.decode",
    "mode": "around",
    "upstream": "pytest==1.0",
    "target_sha256": "",
    "reason": "an example",
    "no_pr": "not upstream's",
    "remove_when": "never",
}

each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda r: str(r.id))


def toml(**changes: str | None) -> str:
    values = (RECORD | changes).items()
    lines = [f'{key} = "{value}"' for key, value in values if value is not None]
    return "\n".join(["[[patch]]", *lines, ""])


def test_one_record_per_hook() -> None:
    recorded = [(r.id, r.target, r.mode) for r in RECORDS if r.kind == "hook"]
    hooks = [(hook.id, hook.target, hook.mode) for hook in HOOKS]
    assert sorted(recorded) == sorted(hooks)


def test_one_record_per_diff() -> None:
    recorded = [f"{r.id}.patch" for r in RECORDS if r.kind == "diff"]
    diffs = [path.name for path in (ROOT / "patches").glob("*.patch")]
    assert sorted(recorded) == sorted(diffs)


@each_record
def test_target_is_the_recorded_source(record: PatchRecord) -> None:
    assert manifest.target_digest(record.target) == record.target_sha256


@each_record
def test_record_tells_why_and_until_when(record: PatchRecord) -> None:
    assert record.reason
    assert record.remove_when
    assert bool(record.upstream_pr) != bool(record.no_pr)


def test_no_problem_is_found() -> None:
    assert manifest.verify_manifest() == []


def test_installed_manifest_is_the_checkout_s() -> None:
    text = (ROOT / "patches" / "manifest.toml").read_text(encoding="utf-8")
    assert parse_manifest(text) == RECORDS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reason": ""}, "a reason"),
        ({"reason": None}, "no ['reason']"),
        ({"remove_when": None}, "no ['remove_when']"),
        ({"no_pr": None}, "either upstream_pr or no_pr"),
        ({"upstream_pr": "https://example.org/1"}, "either upstream_pr or no_pr"),
        ({"no_pr": None, "upstream_pr": "soon"}, "upstream_pr as an https URL"),
        ({"kind": "guess"}, "kind among"),
        ({"mode": "sideways"}, "mode among"),
        ({"mode": None}, "mode among"),
        ({"kind": "diff", "id": "0001-topic"}, "none for a diff"),
        ({"kind": "diff", "mode": None}, "NNNN-topic"),
        ({"id": "Has Spaces"}, "small letters"),
        ({"target": "json"}, "dotted path"),
        ({"upstream": "sglang>=0.5"}, "distribution==version"),
        ({"extra": "key"}, "['extra']"),
    ],
)
def test_broken_record_is_refused_in_one_line(
    changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse_manifest(toml(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["not toml", "[patch]\nid = 1", "stray = 1", "patch = [1]", toml() + toml()],
    ids=["syntax", "one table", "stray key", "no table", "same id twice"],
)
def test_broken_file_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_manifest(text)
    assert "\n" not in str(caught.value)


def test_every_difference_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = parse_manifest(toml())
    (diff,) = parse_manifest(toml(id="0001-lost", kind="diff", mode=None))
    monkeypatch.setattr(manifest, "load_manifest", lambda: (record, diff))
    problems = "\n".join(manifest.verify_manifest())
    assert "decode-strictly: found a record; wanted its hook" in problems
    assert "0001-lost: found a record; wanted patches/0001-lost.patch" in problems
    assert f"found pytest {pytest.__version__} installed; wanted 1.0" in problems
    assert "json.decoder.JSONDecoder.decode with digest" in problems
    for hook in HOOKS:
        assert f"{hook.id}: found a hook; wanted its record" in problems


@pytest.mark.parametrize(("package", "lines"), [("pytest", 2), ("no_such", 0)])
def test_an_optional_package_is_checked_where_it_is(
    monkeypatch: pytest.MonkeyPatch, package: str, lines: int
) -> None:
    (record,) = parse_manifest(toml(only_with=package))
    monkeypatch.setattr(manifest, "load_manifest", lambda: (*RECORDS, record))
    problems = [line for line in manifest.verify_manifest() if "hook in" not in line]
    assert len(problems) == lines


def test_lmcache_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmcache", None)
    assert manifest.verify_manifest() == []


def test_update_changes_the_digests_alone() -> None:
    before = "# A comment stays.\n" + toml(target_sha256="0" * 64)
    after = manifest.update_digests(before)
    digest = manifest.target_digest(RECORD["target"])
    assert after == before.replace("0" * 64, digest)


def test_nothing_of_upstream_is_imported() -> None:
    assert manifest.__name__ in sys.modules
    source = (ROOT / "sglang_qsa" / "manifest.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|sglang|lmcache)\b", source, re.M)
