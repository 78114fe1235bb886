"""What the demo shows: a prompt survives the death of its server.

The yardstick is a device hit of the same prompt: it recomputes the same few tokens
after the same boundary, so a restored prefix must give exactly its tokens and its
log-probabilities. A cold run computes in other shapes and may differ by rounding.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sglang_qsa.demo.client import Generation, generate
from sglang_qsa.demo.daemon import PATIENT, LMCacheDaemon
from sglang_qsa.demo.processes import Progress
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import (
    FIRST_TEXT_TOKEN,
    TEXT_TOKENS,
    cached_checkpoint,
)

PAGE_TOKENS = 64

PROMPT_TOKENS = (1000, 2900)
"""The longer one exceeds the tiny model's selection budget of 2,048 tokens."""

_STORE_TIMEOUT_S = 60.0
_POLL_S = 0.1
_QUIET_POLLS = 15


class Phase(Enum):
    """When in the life of the server a prompt is sent."""

    COLD = "cold"
    DEVICE_HIT = "device hit"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Step:
    """One request of the story, compared with the device hit of the same prompt."""

    name: str
    phase: Phase
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    storage_tokens: int
    recomputed_tokens: int
    seconds: float
    tokens_equal: bool
    max_logprob_difference: float


@dataclass(frozen=True, slots=True)
class Story:
    """All steps, and why the story does not hold (empty: it holds)."""

    device: str
    steps: tuple[Step, ...]
    failures: tuple[str, ...]
    logs: Path
    """Removed already where the story held and no directory was asked for."""
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.failures


class Interrupted(RuntimeError):
    """The story could not be told to its end."""


def run(device: str, work_dir: Path | None, progress: Progress) -> Story:
    """Play the story; everything started is stopped before this returns.

    Args:
        device: "cpu" or "cuda".
        work_dir: for logs; None takes a temporary directory that is removed if the
            story holds.
    Raises:
        StartFailed: the daemon or the server did not start.
        Interrupted: the server or the daemon stopped answering.
    """
    started = time.monotonic()
    progress("preparing the tiny model")
    model = cached_checkpoint()
    logs = work_dir or Path(tempfile.mkdtemp(prefix="sglang-qsa-demo-"))
    try:
        steps = _compare(_play(model, device, logs, progress))
    except OSError as error:
        raise Interrupted(f"{error}; logs: {logs}") from error
    failures = tuple(failure for step in steps for failure in failures_of(step))
    if work_dir is None and not failures:
        shutil.rmtree(logs)
    return Story(device, steps, failures, logs, round(time.monotonic() - started, 1))


def anchor_tokens(prompt_tokens: int) -> int:
    """The last boundary a resend can use: on the grid, below the last token."""
    return (prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS


def prompt(tokens: int) -> list[int]:
    """A prompt that is a function of its length."""
    source = random.Random(tokens)
    last = FIRST_TEXT_TOKEN + TEXT_TOKENS - 1
    return [source.randint(FIRST_TEXT_TOKEN, last) for _ in range(tokens)]


def wait_until_stored(daemon: LMCacheDaemon, before: int, progress: Progress) -> None:
    """Block until the daemon holds more than `before` objects and stays at that.

    Raises:
        TimeoutError: nothing arrived.
    """
    deadline = time.monotonic() + _STORE_TIMEOUT_S
    # Polls, not seconds: a daemon that stalls answers late, and is not quiet.
    count, quiet_polls = before, 0
    while count == before or quiet_polls < _QUIET_POLLS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"LMCache stored nothing in {_STORE_TIMEOUT_S:.0f} s")
        progress("LMCache is storing")
        time.sleep(_POLL_S)
        latest = daemon.stored_objects()
        quiet_polls = quiet_polls + 1 if latest == count else 0
        count = latest


def lmcache_flags(daemon: LMCacheDaemon) -> list[str]:
    """What a user adds to `launch_server` to get the LMCache tier."""
    return ["--enable-lmcache", "--lmcache-config-file", str(daemon.client_config)]


@dataclass(frozen=True, slots=True)
class _Request:
    phase: Phase
    answer: Generation


def _play(model: Path, device: str, logs: Path, progress: Progress) -> list[_Request]:
    with LMCacheDaemon(logs, device=device) as daemon:
        daemon.wait_ready(progress)
        server = SGLangServer(
            model,
            logs,
            device=device,
            flags=lmcache_flags(daemon),
            environment=PATIENT,
        )
        with server:
            server.wait_ready(progress)
            nothing_stored = daemon.stored_objects()
            requests = _send_all(server, Phase.COLD, progress)
            requests += _send_all(server, Phase.DEVICE_HIT, progress)
            wait_until_stored(daemon, nothing_stored, progress)
            progress("kill -9")
            server.kill9()
            server.start()
            server.wait_ready(progress)
            return requests + _send_all(server, Phase.RESTORED, progress)


def _send_all(server: SGLangServer, phase: Phase, progress: Progress) -> list[_Request]:
    requests = []
    for tokens in PROMPT_TOKENS:
        progress(f"{phase.value} prompt of {tokens:,} tokens")
        requests.append(_Request(phase, generate(server.url, prompt(tokens))))
    return requests


def _compare(requests: list[_Request]) -> tuple[Step, ...]:
    yardsticks = {
        request.answer.prompt_tokens: request.answer
        for request in requests
        if request.phase is Phase.DEVICE_HIT
    }
    return tuple(
        _step(request.phase, request.answer, yardsticks[request.answer.prompt_tokens])
        for request in requests
    )


def _step(phase: Phase, answer: Generation, yardstick: Generation) -> Step:
    pairs = zip(answer.logprobs, yardstick.logprobs, strict=True)
    return Step(
        name=f"{phase.value} {answer.prompt_tokens}",
        phase=phase,
        prompt_tokens=answer.prompt_tokens,
        device_tokens=answer.device_tokens,
        host_tokens=answer.host_tokens,
        storage_tokens=answer.storage_tokens,
        recomputed_tokens=answer.recomputed_tokens,
        seconds=round(answer.seconds, 3),
        tokens_equal=answer.output_ids == yardstick.output_ids,
        max_logprob_difference=max(abs(a - b) for a, b in pairs),
    )


def failures_of(step: Step) -> Iterator[str]:
    """Why a step does not show what it claims to show."""
    anchor = anchor_tokens(step.prompt_tokens)
    source, served, wanted = {
        Phase.COLD: ("nowhere", step.recomputed_tokens, step.prompt_tokens),
        Phase.DEVICE_HIT: ("device memory", step.device_tokens, anchor),
        Phase.RESTORED: ("LMCache", step.storage_tokens, anchor),
    }[step.phase]
    if served != wanted:
        yield f"{step.name}: {served} tokens from {source}, expected {wanted}"
    if step.phase is not Phase.RESTORED:
        return
    if not step.tokens_equal:
        yield f"{step.name}: other tokens than the device hit"
    if step.max_logprob_difference != 0.0:
        yield (
            f"{step.name}: log-probabilities differ from the device hit by up to "
            f"{step.max_logprob_difference}"
        )
