"""How the demo tells its story: a progress line, a table, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Self, TextIO

from sglang_qsa.demo.story import Step, Story

_COLUMNS: tuple[tuple[str, Callable[[Step], str]], ...] = (
    ("step", lambda step: step.phase.value),
    ("prompt", lambda step: f"{step.prompt_tokens:,}"),
    ("device", lambda step: f"{step.device_tokens:,}"),
    ("LMCache", lambda step: f"{step.storage_tokens:,}"),
    ("recomputed", lambda step: f"{step.recomputed_tokens:,}"),
    ("seconds", lambda step: f"{step.seconds:.2f}"),
    ("tokens", lambda step: "equal" if step.tokens_equal else "differ"),
    ("max logprob diff", lambda step: f"{step.max_logprob_difference:g}"),
)
"""Heading and text of each column; numbers are token counts unless they say more."""


class ProgressLine:
    """Shows what is going on, with the seconds since the start, on stderr.

    On a terminal one line is rewritten in place; elsewhere each new message gets a
    line of its own, once.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._started = time.monotonic()
        self._message = ""

    def __call__(self, message: str) -> None:
        if not self._rewrites and message == self._message:
            return
        self._message = message
        elapsed_s = time.monotonic() - self._started
        start, end = ("\r\x1b[K", "") if self._rewrites else ("", "\n")
        self._stream.write(f"{start}[{elapsed_s:5.1f} s] {message}{end}")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line off the terminal."""
        if self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def as_json(story: Story) -> str:
    """`ok` and the steps, one JSON document."""
    steps = []
    for step in story.steps:
        fields = asdict(step)
        del fields["phase"]
        steps.append(fields)
    document = {
        "ok": story.ok,
        "device": story.device,
        "seconds": story.seconds,
        "failures": story.failures,
        "steps": steps,
    }
    return json.dumps(document, indent=2)


def as_table(story: Story) -> str:
    """The steps as aligned text, and a verdict."""
    rows = [[heading for heading, _ in _COLUMNS]]
    rows += [[text(step) for _, text in _COLUMNS] for step in story.steps]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_align(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([_headline(story), "", *lines, "", *_verdict(story)])


def _align(row: list[str], widths: list[int]) -> str:
    first, *rest = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest])


def _headline(story: Story) -> str:
    versions = f"SGLang {version('sglang')}, LMCache {version('lmcache')}"
    return f"{versions}, device {story.device}; prompt columns count tokens"


def _verdict(story: Story) -> list[str]:
    if story.ok:
        return [
            "OK: after kill -9 every prompt came back from LMCache up to its last "
            "boundary,",
            "with the tokens and the log-probabilities of a device hit "
            f"({story.seconds:.0f} s).",
        ]
    return [
        *(f"FAILED  {failure}" for failure in story.failures),
        f"logs: {story.logs}",
    ]
