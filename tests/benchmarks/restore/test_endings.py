"""Runs that prove nothing, or do not get to their end: one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.interrupts import INTERRUPTED
from benchmarks.restore import command
from benchmarks.restore.command import FAULTY, main
from benchmarks.restore.run import OnStep, Plan, Side
from benchmarks.restore.run import run as measure
from sglang_qsa.errors import REFUSED
from tests.benchmarks.restore.runs import (
    INFO,
    LENGTHS,
    result,
    rows,
    run,
    samples,
    serve,
)

pytestmark = pytest.mark.usefixtures("quick", "no_plot")

FLUSH = ("--between", "flush")
"""Requests 1 to 4 are those of the first length, 5 to 8 those of the second."""


@pytest.mark.parametrize("kept_pages", [0, 2])
def test_a_prompt_that_the_tier_did_not_serve_whole_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept_pages: int
) -> None:
    with serve(kept_pages=kept_pages) as server:
        code = run(tmp_path, server, arguments=(*FLUSH, "--settle-s", "0.2"))
    assert code == FAULTY
    told = capsys.readouterr().err.splitlines()[-len(LENGTHS) :]
    for line, length in zip(told, LENGTHS, strict=True):
        served = f"host {64 * kept_pages}, " if kept_pages else ""
        computed = length + 12 - 64 * kept_pages
        assert line.startswith(f"ours, {server.url}, {length} tokens: found ")
        assert f"restored prompt with tokens {served}computed {computed} (" in line
        assert "wanted as much from host, storage or external" in line
    assert [sample["served"] for sample in samples(tmp_path)] == [False, False]
    for row in rows(tmp_path):
        assert row["served"] == row["compared"] == 0
        assert row["restored_s"] is row["added_s"] is row["loaded_bytes"] is None
    assert "**unserved**: " in (tmp_path / "restore.md").read_text()


def test_tiers_that_serve_nothing_can_be_measured_too(tmp_path: Path) -> None:
    with serve(kept_pages=0) as server:
        arguments = (*FLUSH, "--settle-s", "0.2", "--no-require-tier")
        assert run(tmp_path, server, arguments=arguments) == 0
    assert {fault["kind"] for fault in result(tmp_path)["faults"]} == {"unserved"}


def test_the_baseline_has_to_serve_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*FLUSH, "--settle-s", "0.2")
    with serve() as ours, serve(kept_pages=0) as stock:
        assert run(tmp_path, ours, stock, arguments=arguments) == FAULTY
    told = capsys.readouterr().err.splitlines()[-len(LENGTHS) :]
    assert all(line.startswith(f"stock, {stock.url}, ") for line in told)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (2, "device hit ≠ restored = device hit after"),
        (3, "device hit = device hit after ≠ restored"),
        (4, "device hit = restored ≠ device hit after"),
    ],
)
def test_answers_that_differ_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: int, told: str
) -> None:
    with serve(change_at=changed) as server:
        assert run(tmp_path, server, arguments=FLUSH) == FAULTY
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{LENGTHS[0]} tokens: found answers {told} in 1 of 1 repeats" in line
    assert [sample["outputs_equal"] for sample in samples(tmp_path)] == [False, True]
    assert f"**unequal**: {line}" in (tmp_path / "restore.md").read_text()


def test_a_cold_prompt_that_was_sent_before_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as server:
        assert run(tmp_path, server, arguments=FLUSH) == 0
        assert run(tmp_path, server, arguments=(*FLUSH, "--settle-s", "0.2")) == FAULTY
    assert "found a cold prompt with tokens " in capsys.readouterr().err
    assert all(row["cold_s"] is None for row in rows(tmp_path))


def test_a_death_in_the_middle_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as ours, serve(die_at=7) as stock:
        assert run(tmp_path, ours, stock, arguments=FLUSH) == REFUSED
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"{stock.url}/generate: found ")
    assert "wanted an SGLang server that answers" in told
    assert told.endswith(f"; partial result in {tmp_path}")
    found = result(tmp_path)
    assert found["partial"]
    assert found["stopped"] in told
    assert [sample["ended"] for sample in samples(tmp_path)] == [True]
    whole, broken = samples(tmp_path, 1)
    assert whole["ended"]
    assert list(broken["answers"]) == ["cold", "device hit"]
    assert [row["ended"] for row in rows(tmp_path, 1)] == [1, 0]
    assert not found["faults"]
    table = (tmp_path / "restore.md").read_text()
    assert f"**PARTIAL RESULT.** {found['stopped']}" in table


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_off(plan: Plan, sides: Sequence[Side], on_step: OnStep) -> None:
        await measure(plan, sides, on_step)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", cut_off)
    with serve() as server:
        assert run(tmp_path, server, arguments=FLUSH) == INTERRUPTED
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"interrupted; partial result in {tmp_path}"
    assert result(tmp_path)["partial"]
    assert len(samples(tmp_path)) == len(LENGTHS)


def test_nothing_is_saved_where_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as server:
        url = server.url
    assert main(["--url", url, "--out", str(tmp_path)]) == REFUSED
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "found no connection" in told[0]
    assert not list(tmp_path.iterdir())


def refused_before_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str, **facts: object
) -> str:
    with serve(**facts) as server:
        assert run(tmp_path, server, arguments=arguments) == REFUSED
        assert not server.prompts
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{server.url}/server_info: found ")
    return line


def test_a_prompt_that_is_too_long_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ("--prompt-tokens", "500", "1261", "1260", "9000")
    line = refused_before_a_request(tmp_path, capsys, *lengths)
    assert "found --prompt-tokens 1261 9000; wanted at most 1260, " in line


def test_a_device_of_unknown_size_cannot_be_evicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = INFO | {"max_total_num_tokens": None}
    line = refused_before_a_request(tmp_path, capsys, info=info)
    assert "found no max_total_num_tokens" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: --url, --out"),
        (["--url", "localhost:1"], "found 'localhost:1'; wanted http://HOST:PORT"),
        (["--prompt-tokens", "0"], "found '0'; wanted 1 or more"),
        (["--between", "restart"], "invalid choice: 'restart'"),
    ],
)
def test_a_bad_argument_is_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *(["--url", "http://h", "--out", "o"] if arguments else [])])
    told = capsys.readouterr().err
    assert ended.value.code == REFUSED
    assert expected in told
    assert told.count("\n") == 1
