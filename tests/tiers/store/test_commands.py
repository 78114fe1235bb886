"""`sglang-qsa store` on live and stopped stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa.cli import main
from sglang_qsa.tiers.store.record import Kind
from tests.tiers.store.small import (
    GEOMETRY,
    LAYOUT,
    OTHERS,
    Prompt,
    open_store,
    put,
    served,
)

AB, ABC = Prompt.of(*"ab"), Prompt.of(*"abc")


def run(
    capsys: pytest.CaptureFixture[str], root: Path, *arguments: str, code: int = 0
) -> Any:
    """The only namespace's document."""
    capsys.readouterr()
    assert main(["store", *arguments, "--dir", str(root), "--json"]) == code
    (document,) = json.loads(capsys.readouterr().out).values()
    return document


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"?")


def test_ls_and_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, ABC)
    served(store, AB)
    store.refresh()
    listed = run(capsys, tmp_path, "ls")["checkpoints"]
    assert [row["key"] for row in listed] == [AB.checkpoint, ABC.checkpoint]
    assert [row["tokens"] for row in listed] == [
        2 * GEOMETRY.page_tokens,
        3 * GEOMETRY.page_tokens,
    ]
    assert all(row["whole"] for row in listed)
    store.close()
    counted = run(capsys, tmp_path, "stats")
    assert (counted["checkpoints"], counted["pages"]) == (2, 3)
    assert counted["page_bytes"] == LAYOUT.page_bytes
    assert main(["store", "ls", "--dir", str(tmp_path)]) == 0
    assert AB.checkpoint in capsys.readouterr().out


def test_verify_and_repair_of_a_live_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, ABC)
    verdict = run(capsys, tmp_path, "verify")
    assert (verdict["clean"], verdict["sound"]) == (True, 3 + 2 + 2)
    page = ABC.pages[2]
    damage(store.namespace.file(Kind.PAGE, page))
    verdict = run(capsys, tmp_path, "verify", code=1)
    assert verdict["damaged"] == [{"unit": "page", "key": page, "cause": "checksum"}]
    assert verdict["incomplete"] == [ABC.checkpoint]
    assert store.contains(ABC.checkpoint)  # only looked at
    assert run(capsys, tmp_path, "verify", "--repair")["repaired"]
    assert run(capsys, tmp_path, "verify")["clean"]
    assert served(store, ABC) == 2
    put(store, ABC)
    assert served(store, ABC) == 3
    store.close()


def test_gc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, ABC)
    assert run(capsys, tmp_path, "gc")["removed_records"] == 0
    assert run(capsys, tmp_path, "gc", "--budget-bytes", "0") == {
        "evicted_checkpoints": 2,
        "removed_records": 5,
        "freed_bytes": store.tally.count("bytes", "written") + 2 * 8192,
        "used_bytes": 0,
    }
    assert served(store, ABC) == 0
    store.close()


def test_one_namespace_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = open_store(tmp_path), open_store(tmp_path, OTHERS["dtype"])
    put(mine, AB)
    put(theirs, AB, OTHERS["dtype"])
    name = theirs.namespace.name
    run(capsys, tmp_path, "gc", "--budget-bytes", "0", "--namespace", name)
    assert served(mine, AB) == 2
    assert served(theirs, AB, OTHERS["dtype"]) == 0
    mine.close()
    theirs.close()
    assert main(["store", "ls", "--dir", str(tmp_path), "--namespace", "x"]) == 2
    assert_one_line(capsys, found="no namespace 'x'")


def test_no_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("ls", "verify", "gc", "stats"):
        assert main(["store", action, "--dir", str(tmp_path / "none")]) == 2
        assert_one_line(capsys, found="No such file")
    (tmp_path / "store.json").write_text("{")
    assert main(["store", "ls", "--dir", str(tmp_path)]) == 2
    assert_one_line(capsys, found="malformed JSON")


def assert_one_line(capsys: pytest.CaptureFixture[str], *, found: str) -> None:
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert f"found {found}" in error
    assert "; wanted " in error
