"""What happens beside the streams of one server, and when."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.decode_gap.streams import Stream, check, streaming
from sglang_qsa.demo.client import Generation, generate
from sglang_qsa.demo.processes import Progress
from sglang_qsa.demo.story import prompt

TAIL_TOKENS = 300
"""Fresh tokens behind a prompt that comes again: a checkpoint to back up."""
STREAM_PROMPT_TOKENS = 500
WARM_UPS = 2
QUIET_S = 2.0
PAUSE_S = 0.3
CALLS = ("backup", "load")
LEAST_GAPS = 2
"""For a median and a percentile."""
_AFTER_S = 0.2
"""After an answer: backups go on for a while."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of everything that is sent."""

    streams: int
    prompt_tokens: int
    prompts: int
    restores: int
    stream_tokens: int
    prefill_tokens: int
    """Of one cold prompt; 0 sends none."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and the gaps between tokens that end in it, in seconds."""

    client_s: list[float]
    """Between chunks of one stream, as they arrived; all streams."""
    scheduler_s: list[float]
    """Between results of decode steps in the scheduler."""
    plain_s: list[float]
    """Of these, those without a prompt's forward in between; see `step_times`."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Files that a server's `probe` writes."""

    steps: Path
    calls: Path

    def remove(self) -> None:
        for path in (self.steps, self.calls):
            path.unlink(missing_ok=True)

    def step_times(self) -> list[tuple[float, bool]]:
        """Of each decode step: when its result came, and whether a prompt's forward
        had its own just before or after.

        After it too: a scheduler that overlaps submits the forward, which takes the
        host as long as the GPU, and only then takes the result of the step before.
        """
        found: list[tuple[float, bool]] = []
        beside = False
        pairs = iter(array("d", self.steps.read_bytes()))
        for at, other in zip(pairs, pairs, strict=True):
            if not other:
                found.append((at, beside))
            elif found:
                found[-1] = (found[-1][0], True)
            beside = bool(other)
        return found

    def call_times(self, span: tuple[float, float]) -> dict[str, list[float]]:
        """Seconds of the scheduler's thread in each backup and load of `span`."""
        found: dict[str, list[float]] = {kind: [] for kind in CALLS}
        notes = array("d", self.calls.read_bytes() if self.calls.exists() else b"")
        for ended, kind, seconds in zip(*[iter(notes)] * 3, strict=True):
            if span[0] <= ended <= span[1]:
                found[CALLS[int(kind)]].append(seconds)
        return found


@dataclass(frozen=True, slots=True)
class Measured:
    """One server under one workload."""

    quiet: Window
    """Streams alone."""
    restores: Window
    prefill: Window | None
    calls_s: dict[str, list[float]]
    """Of the scheduler's thread in each submission of copies, by kind, while prompts
    came again."""
    answers: list[Generation]
    """To prompts that came again."""
    prefill_s: float | None
    """Of the cold prompt beside the streams."""
    prefill_alone_s: float | None
    """Of another one of its length, without streams."""


def measure(url: str, notes: Notes, workload: Workload, progress: Progress) -> Measured:
    """Run the workload against the server at `url`.

    Args:
        notes: what the probe in this server writes.
    Raises:
        RuntimeError: a stream ended early, or too few tokens came in a window.
        OSError: a request failed.
    """
    prompts = [prompt(workload.prompt_tokens + n) for n in range(workload.prompts)]
    tails = [prompt(TAIL_TOKENS + n) for n in range(workload.restores + WARM_UPS)]
    for number, tokens in enumerate(prompts):
        progress(f"cold prompt {number + 1} of {len(prompts)}")
        generate(url, tokens, max_new_tokens=1)
    # As what follows, so that nothing compiles while streams are measured. The device
    # keeps what came last: those that come again first were sent longest ago.
    for tokens, tail in zip(prompts[:WARM_UPS], tails[-WARM_UPS:], strict=True):
        generate(url, tokens + tail, max_new_tokens=1)
    spans: dict[str, tuple[float, float]] = {}
    answers: list[Generation] = []
    prefill_s = alone_s = None
    with streaming(
        url, workload.streams, STREAM_PROMPT_TOKENS, workload.stream_tokens
    ) as streams:
        started = time.perf_counter()
        time.sleep(QUIET_S)
        spans["quiet"] = started, time.perf_counter()
        started = time.perf_counter()
        for number in range(workload.restores):
            progress(f"prompt {number + 1} of {workload.restores} that comes again")
            check(streams)
            tokens = prompts[(WARM_UPS + number) % len(prompts)] + tails[number]
            answers.append(generate(url, tokens, max_new_tokens=1))
            time.sleep(PAUSE_S)
        time.sleep(_AFTER_S)
        spans["restores"] = started, time.perf_counter()
        if workload.prefill_tokens:
            progress(f"cold prompt of {workload.prefill_tokens:,} tokens")
            started = time.perf_counter()
            cold = prompt(workload.prefill_tokens)
            prefill_s = generate(url, cold, max_new_tokens=1).seconds
            spans["prefill"] = started, time.perf_counter()
    if workload.prefill_tokens:
        cold = prompt(workload.prefill_tokens + 1)
        alone_s = generate(url, cold, max_new_tokens=1).seconds
    of_scheduler = notes.step_times()
    windows = {
        name: _window(name, span, streams, of_scheduler) for name, span in spans.items()
    }
    return Measured(
        quiet=windows["quiet"],
        restores=windows["restores"],
        prefill=windows.get("prefill"),
        calls_s=notes.call_times(spans["restores"]),
        answers=answers,
        prefill_s=prefill_s,
        prefill_alone_s=alone_s,
    )


def _window(
    name: str,
    span: tuple[float, float],
    streams: Sequence[Stream],
    steps: Sequence[tuple[float, bool]],
) -> Window:
    client_s = [gap for stream in streams for gap in gaps(stream.times_s, span)]
    beside = [of_prompt for at, of_prompt in steps[1:] if span[0] <= at <= span[1]]
    scheduler_s = gaps([at for at, _ in steps], span)
    plain_s = [gap for gap, of in zip(scheduler_s, beside, strict=True) if not of]
    window = Window(client_s, scheduler_s, plain_s)
    for place, found in (("client", client_s), ("scheduler", plain_s)):
        if len(found) < LEAST_GAPS:
            raise RuntimeError(
                f"found {len(found)} gaps between tokens at the {place} ({name}); "
                f"wanted at least {LEAST_GAPS}; raise --streams or --restores"
            )
    return window


def gaps(times_s: Sequence[float], span: tuple[float, float]) -> list[float]:
    """Differences of neighbours of which the later one lies in `span`."""
    first, last = span
    return [b - a for a, b in pairwise(times_s) if first <= b <= last]
