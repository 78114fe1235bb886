"""The demo's verdict, and how it is told."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from sglang_qsa.demo import report
from sglang_qsa.demo.story import Phase, Step, Story, anchor_tokens, failures_of, prompt

RESTORED = Step(
    name="restored 1000",
    phase=Phase.RESTORED,
    prompt_tokens=1000,
    device_tokens=0,
    host_tokens=0,
    storage_tokens=960,
    recomputed_tokens=40,
    seconds=0.25,
    tokens_equal=True,
    max_logprob_difference=0.0,
)


def story_of(step: Step) -> Story:
    failures = tuple(failures_of(step))
    return Story("cpu", (step,), failures, Path("/logs"), 80.0)


@pytest.mark.parametrize(
    ("tokens", "anchor"), [(1, 0), (64, 0), (65, 64), (1000, 960), (1024, 960)]
)
def test_anchor_is_below_the_last_token(tokens: int, anchor: int) -> None:
    assert anchor_tokens(tokens) == anchor


def test_prompts_do_not_change() -> None:
    assert prompt(1000)[:4] == prompt(1000)[:4]
    assert prompt(1000)[:64] != prompt(2900)[:64]
    assert len(prompt(2900)) == 2900
    assert all(3 <= token < 500 for token in prompt(2900))


def test_restored_step_holds() -> None:
    assert story_of(RESTORED).ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storage_tokens": 896}, "896 tokens from LMCache, expected 960"),
        ({"storage_tokens": 0, "device_tokens": 960}, "0 tokens from LMCache"),
        ({"tokens_equal": False}, "other tokens"),
        ({"max_logprob_difference": 1e-7}, "differ from the device hit"),
        ({"phase": Phase.COLD}, "40 tokens from nowhere, expected 1000"),
        ({"phase": Phase.DEVICE_HIT}, "0 tokens from device memory"),
    ],
)
def test_what_does_not_hold_is_named(change: dict[str, object], reason: str) -> None:
    step = dataclasses.replace(RESTORED, **change)  # type: ignore[arg-type]
    story = story_of(step)
    assert not story.ok
    table = report.as_table(story)
    assert reason in table
    assert "logs: /logs" in table


def test_json() -> None:
    document = json.loads(report.as_json(story_of(RESTORED)))
    assert document["ok"] is True
    (step,) = document["steps"]
    assert step["storage_tokens"] == 960
    assert "phase" not in step


def test_table_is_aligned() -> None:
    lines = report.as_table(story_of(RESTORED)).splitlines()
    heading, rule, row = lines[2:5]
    assert len(heading) == len(rule) == len(row)
    assert row.split()[:3] == ["restored", "1,000", "0"]


def test_progress_without_a_terminal_has_a_line_per_message() -> None:
    stream = io.StringIO()
    with report.ProgressLine(stream) as progress:
        for message in ("starting", "starting", "ready"):
            progress(message)
    assert [line.split("] ")[1] for line in stream.getvalue().splitlines()] == [
        "starting",
        "ready",
    ]


def test_progress_on_a_terminal_leaves_nothing() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with report.ProgressLine(stream) as progress:
        progress("starting")
        progress("starting")
    assert stream.getvalue().count("starting") == 2
    assert stream.getvalue().endswith("\r\x1b[K")
