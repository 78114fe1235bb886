"""The command from end to end, against a server that can be wrong in each way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.gsm8k.fake_server import Fake, fake_server

pytest.importorskip("sgl_eval", reason="needs requirements/bench.txt")

from benchmarks.gsm8k.__main__ import main

QUESTIONS = 12


@pytest.fixture
def fake() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


def run(fake: Fake, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(
        [
            *("--url", fake.url, "--data", "generated", "--out", str(out)),
            *("--questions", str(QUESTIONS), "--settle-s", "0", *options),
        ]
    )
    path = out / "gsm8k.json"
    return code, json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("api", ["chat", "completion", "native"])
@pytest.mark.parametrize("compare", ["answers", "tokens"])
def test_a_healthy_tier_passes(
    fake: Fake, tmp_path: Path, api: str, compare: str
) -> None:
    code, result = run(fake, tmp_path, "--api", api, "--compare", compare)
    assert (code, result["failures"]) == (0, [])
    assert result["served"] == {"questions": QUESTIONS, "of": QUESTIONS}
    assert result["summary"]["tier"]["accuracy"] == 1
    assert result["answers"]["tier"][0]["report"]["token_ids"][:2] == [7, 8]
    assert "OK" in (tmp_path / "gsm8k.md").read_text()


@pytest.mark.parametrize("threads", [1, 8, 16])
def test_so_many_requests_are_under_way(
    fake: Fake, tmp_path: Path, threads: int
) -> None:
    fake.meeting = threading.Barrier(threads)
    options = ("--questions", "16", "--concurrency", str(threads))
    code, _ = run(fake, tmp_path, *options, "--group", "16")
    assert code == 0
    assert fake.most_in_flight == threads


def test_wrong_answers_from_the_tier_fail(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.wrong_from_tier = True
    code, result = run(fake, tmp_path)
    assert code == 1
    (failure,) = result["failures"]
    assert failure.startswith(
        "answers flip: 12 of 12 from the tier (12 lost, 0 gained)"
    )
    assert f"FAILED  {failure}" in capsys.readouterr().out
    assert result["flips"]["tier"]["lost"] == QUESTIONS


def test_other_tokens_from_the_tier_fail(fake: Fake, tmp_path: Path) -> None:
    fake.wrong_from_tier = True
    code, result = run(fake, tmp_path, "--compare", "tokens")
    assert code == 1
    assert result["failures"][0].startswith(
        "outputs differ: 12 questions from the tier, 0 in"
    )


def test_a_pass_without_the_tier_fails(fake: Fake, tmp_path: Path) -> None:
    """CASES 26: a run whose counters stay at zero proves nothing."""
    fake.has_tier = False
    code, result = run(fake, tmp_path)
    assert code == 1
    assert result["failures"][0].startswith(
        "pass 2 was not served by the tier: 0 of 12 questions"
    )


def test_a_second_pass_from_the_device_fails(fake: Fake, tmp_path: Path) -> None:
    code, result = run(fake, tmp_path, "--between", "none")
    assert code == 1
    assert "0 of 12" in result["failures"][0]


def test_a_warm_tier_is_no_cold_pass(fake: Fake, tmp_path: Path) -> None:
    """A tier that is wrong already would agree with itself."""
    run(fake, tmp_path)
    fake.device.clear()
    code, result = run(fake, tmp_path)
    assert code == 1
    assert result["failures"][0].startswith("pass 1 was not cold")
    assert run(fake, tmp_path, "--seed", "1")[0] == 0


def test_groups_larger_than_the_device_fail(fake: Fake, tmp_path: Path) -> None:
    options = ("--questions", "50", "--group", "50")
    code, result = run(fake, tmp_path, *options)
    assert code == 1
    assert "lower --group" in result["failures"][0]


def test_evicted_prompts_come_from_the_tier(fake: Fake, tmp_path: Path) -> None:
    code, result = run(fake, tmp_path, "--between", "evict")
    assert code == 0
    assert result["between"]["evicted_by_tokens"] >= 60 * 320


def test_a_server_without_sources_is_not_believed(fake: Fake, tmp_path: Path) -> None:
    fake.tells_sources = False
    code, result = run(fake, tmp_path)
    assert code == 1
    assert "does not say where" in result["failures"][0]
    assert run(fake, tmp_path, "--seed", "1", "--sources", "any")[0] == 0


def test_accuracy_too_low_to_lose_any_fails(fake: Fake, tmp_path: Path) -> None:
    fake.wrong_always = True
    code, result = run(fake, tmp_path)
    assert code == 1
    assert "flips prove nothing" in result["failures"][0]


@pytest.mark.parametrize(("accepted", "code"), [(79, 0), (60, 1)])
def test_fewer_accepted_drafts_fail(
    fake: Fake, tmp_path: Path, accepted: int, code: int
) -> None:
    """CASES 16."""
    fake.acceptance_from_tier = accepted
    found, result = run(fake, tmp_path)
    assert found == code
    assert result["summary"]["device"]["mtp_acceptance"] == 0.8
    assert result["summary"]["tier"]["mtp_acceptance"] == accepted / 100


def test_a_reference_saves_the_first_pass(fake: Fake, tmp_path: Path) -> None:
    run(fake, tmp_path / "first")
    answered = fake.answered
    reference = ("--reference", str(tmp_path / "first" / "gsm8k.json"))
    assert run(fake, tmp_path / "second", *reference)[0] == 0
    assert fake.answered == answered + QUESTIONS
    assert run(fake, tmp_path / "third", *reference, "--shots", "4") == (2, {})


@pytest.mark.parametrize(
    ("dies_after", "answers"), [(5, {"device again": 1}), (40, {"tier": 4})]
)
def test_a_killed_server_ends_the_run(
    fake: Fake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dies_after: int,
    answers: dict[str, int],
) -> None:
    fake.dies_after = dies_after
    code, result = run(fake, tmp_path, "--concurrency", "1")
    assert code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith(f"benchmarks.gsm8k: {fake.url}: found no answer (")
    assert line.endswith(f"{dies_after} answers are saved in {tmp_path}/gsm8k.json")
    assert result["interrupted"]
    assert not result["ok"]
    for name, count in answers.items():
        assert len(result["answers"][name]) == count


def test_a_restart_command_runs_between(fake: Fake, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = f"touch {ran} && curl -s -X POST {fake.url}/flush_cache"
    code, result = run(fake, tmp_path, "--restart-command", command)
    assert (code, ran.exists()) == (0, True)
    assert result["between"]["restart_s"] >= 0


@pytest.mark.parametrize(
    ("command", "found"), [("exit 3", "exit code 3"), ("sleep 9", "no end after 1 s")]
)
def test_a_failed_restart_is_refused(
    fake: Fake, tmp_path: Path, command: str, found: str
) -> None:
    options = ("--restart-command", command, "--health-timeout-s", "1")
    code, result = run(fake, tmp_path, *options)
    assert code == 2
    assert f"--restart-command: found {found}" in result["interrupted"]
    assert len(result["answers"]["device again"]) == QUESTIONS


@pytest.mark.parametrize(("shots", "asked"), [(5, 20), (0, 30)])
def test_a_file_of_questions(
    fake: Fake, tmp_path: Path, shots: int, asked: int
) -> None:
    from benchmarks.gsm8k.generated import problems

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in problems(30, 1)))
    options = ("--questions", "0", "--shots", str(shots))
    code, result = run(fake, tmp_path, "--data", str(data), *options)
    assert code == 0
    assert result["served"]["of"] == asked


def test_interrupted_runs_keep_their_answers(fake: Fake, tmp_path: Path) -> None:
    fake.delay_s = 0.1
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    code, result = run(fake, tmp_path, "--concurrency", "2")
    assert (code, result["interrupted"]) == (130, "interrupted")
    assert 0 < sum(map(len, result["answers"].values())) < 4 * QUESTIONS


def test_noise_that_hides_losses_fails(fake: Fake, tmp_path: Path) -> None:
    fake.noisy = True
    code, result = run(fake, tmp_path, "--compare", "tokens")
    assert code == 1
    assert "two device passes differ in 12 of 12" in result["failures"][0]
    assert run(fake, tmp_path, "--seed", "1")[0] == 0


def test_a_device_that_loses_answers_fails(fake: Fake, tmp_path: Path) -> None:
    fake.wrong_from_device = 10
    code, result = run(fake, tmp_path, "--min-accuracy", "0")
    assert code == 1
    assert any("the device itself loses" in line for line in result["failures"])


def test_no_server_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server() as gone:
        pass
    assert run(gone, tmp_path) == (2, {})
    assert "found no list of models" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "{}\n", "not JSON\n"])
def test_unusable_files_are_refused(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    data = tmp_path / "data.jsonl"
    if content is not None:
        data.write_text(content)
    assert run(fake, tmp_path, "--data", str(data)) == (2, {})
    assert str(data) in capsys.readouterr().err
