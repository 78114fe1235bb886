"""Runs that end early, or do not begin: one line, an exit code, what was measured."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.interrupts import INTERRUPTED
from benchmarks.radix_cache.command import main
from sglang_qsa.errors import REFUSED
from tests.benchmarks.radix_cache.fake_server import FakeServer
from tests.benchmarks.radix_cache.runs import REQUESTS, result, run

pytestmark = pytest.mark.usefixtures("no_plots")


def test_a_death_in_the_middle_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer() as ours, FakeServer(die_at=9) as stock:
        code = run(tmp_path, ours, stock, arguments=("--round", "6"))
    assert code == REFUSED
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"{stock.url}/generate: found ")
    assert "wanted an SGLang server that answers" in told
    assert str(tmp_path) in told
    found = result(tmp_path)
    assert found["partial"]
    assert found["stopped"] in told
    assert 6 <= len(found["servers"][1]["samples"]) < 12
    assert len(found["servers"][0]["samples"]) == 6
    assert found["comparison"]["requests"] <= 6
    assert "PARTIAL RESULT" in (tmp_path / "radix_cache.html").read_text()


def test_a_refused_request_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(refuse_at=5) as server:
        assert run(tmp_path, server) == REFUSED
    assert 'found HTTP 400 ({"error": {"message": "no"}})' in capsys.readouterr().err
    assert result(tmp_path)["partial"]


def test_a_silent_server_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(hang_at=5) as server:
        assert run(tmp_path, server, arguments=("--timeout-s", "0.3")) == REFUSED
    assert "/generate: found no byte for 0.3 s;" in capsys.readouterr().err
    assert result(tmp_path)["partial"]


def test_another_kind_of_server_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(info={"version": None}) as server:
        assert run(tmp_path, server) == REFUSED
    assert "/server_info: found no SGLang server" in capsys.readouterr().err


def test_nothing_is_saved_where_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer() as server:
        url = server.url
    assert main(["--url", url, "--out", str(tmp_path)]) == REFUSED
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "found no connection" in told[0]
    assert not (tmp_path / "radix_cache.json").exists()


def heed_ctrl_c() -> None:
    """A child of a background job of a shell inherits that it ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with FakeServer() as server:
        command = [
            *(sys.executable, "-m", "benchmarks.radix_cache", "--url", server.url),
            *("--out", str(tmp_path), "--set", "turns=12", "--clients", "2"),
            *("--sessions", "200"),
        ]
        child = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
        )
        while len(server.prompts) < 20 and child.poll() is None:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=60)
    assert child.returncode == INTERRUPTED
    assert told.splitlines()[-1].startswith("interrupted; partial result in")
    assert "Traceback" not in told
    assert result(tmp_path)["partial"]
    assert len(result(tmp_path)["servers"][0]["samples"]) >= 15


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: --url, --out"),
        (["--url", "localhost:1"], "found 'localhost:1'; wanted http://HOST:PORT"),
        (["--clients", "0"], "found '0'; wanted 1 or more"),
        (["--scale", "nan"], "found 'nan'; wanted a number above 0"),
        (["--workload", "chess"], "invalid choice: 'chess'"),
        (["--vocabulary", "9:3"], "found '9:3'; wanted LOW:HIGH"),
        (["--trace", "t", "--set", "user=5"], "--set has no meaning for --trace"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
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


@pytest.mark.parametrize(
    "arguments",
    [("--set", "answer=x"), ("--set", "usr=5"), ("--trace", "/nowhere.jsonl")],
)
def test_bad_lengths_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer() as server:
        assert run(tmp_path, server, arguments=arguments, sizes=()) == REFUSED
        assert not server.prompts
    told = capsys.readouterr().err
    assert re.fullmatch(r"--\w+[^\n]*: found [^\n]+; wanted [^\n]+\n", told)


def test_turns_that_do_not_fit_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(info={"max_req_input_len": 500}) as server:
        assert run(tmp_path, server) == 0
    found = result(tmp_path)
    assert found["left_out_turns"] + found["wanted_requests"] == REQUESTS
    assert found["left_out_turns"] > 0
    with FakeServer(info={"max_req_input_len": 50}) as server:
        assert run(tmp_path, server) == REFUSED
    assert "all longer than 50 tokens" in capsys.readouterr().err
