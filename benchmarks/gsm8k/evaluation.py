"""One run: questions, pass 1, what is between, pass 2."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from benchmarks import machine
from benchmarks.gsm8k import between, harness
from benchmarks.gsm8k.answers import FIRST, Answer, Pass, from_json
from benchmarks.gsm8k.harness import Example
from benchmarks.gsm8k.options import Options
from benchmarks.gsm8k.passes import Passes
from benchmarks.gsm8k.transport import NoAnswer, Transport
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.errors import ConfigError, QsaError, refusal

_SAME_QUESTIONS = ("api", "data", "shots", "seed", "max_tokens", "extra_body")
"""Options that make prompts and answers; a reference must have been run with them."""


class Stopped(QsaError):
    """The server gave no more answers."""


class Evaluation:
    """Holds the answers as they come, so that an interrupted run keeps them.

    Raises:
        ConfigError: no such data or reference.
        NoAnswer: no such server.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._questions, pool = harness.load(
            options.data, options.questions, options.seed, options.shots
        )
        self._reference = _reference(options, self._questions)
        self._transport = Transport(
            options.url,
            options.api,
            model=options.model,
            max_tokens=options.max_tokens,
            timeout_s=options.timeout_s,
            logprobs=options.limits.compare == "tokens",
            extra=options.extra_body,
        )
        self._prompts = harness.prompts(
            self._questions, pool, options.shots, options.seed
        )
        self._passes = Passes(
            self._transport,
            self._questions,
            self._prompts,
            concurrency=options.concurrency,
            group=options.group,
        )
        self._between: dict[str, Any] = {}

    @property
    def answers(self) -> dict[Pass, list[Answer]]:
        return self._reference | self._passes.answers

    @property
    def count(self) -> int:
        return sum(map(len, self._passes.answers.values()))

    @property
    def title(self) -> str:
        options = self._options
        return (
            f"{self._transport.model}: {len(self._questions)} questions of "
            f"{options.data}, {options.shots} shots, {options.api}, concurrency "
            f"{options.concurrency}, compared by {options.limits.compare}"
        )

    @property
    def head(self) -> dict[str, Any]:
        """Where, with what and how this was measured."""
        options = {
            name: getattr(self._options, name) for name in Options.__dataclass_fields__
        }
        limits = options.pop("limits")
        options |= {name: getattr(limits, name) for name in limits.__dataclass_fields__}
        options["out"] = str(options["out"])
        options["reference"] = options["reference"] and str(options["reference"])
        return {
            "machine": machine.describe(),
            "model": self._transport.model,
            "options": options,
            "between": self._between,
        }

    def run(self) -> None:
        """All passes that no reference holds.

        Raises:
            Stopped: the server refused or broke a request.
            NotPrepared: the device was not emptied.
        """
        try:
            if not self._reference:
                self._passes.first()
            with ProgressLine() as progress:
                self._prepare(progress)
            self._passes.tier()
        except NoAnswer as error:
            raise Stopped(
                refusal(
                    found=f"no answer ({error})",
                    wanted="one for every question",
                    origin=self._options.url,
                    way_out="look at the server's log and run again",
                )
            ) from error

    def _prepare(self, progress: ProgressLine) -> None:
        options = self._options
        if not self._reference:
            progress(f"{options.settle_s:g} s for the tier to store all")
            time.sleep(options.settle_s)
        if options.restart_command is not None:
            self._between = between.restart(
                options.restart_command,
                options.url,
                options.health_timeout_s,
                progress,
            )
        elif options.between == "flush":
            self._between = between.flush(options.url)
        elif options.between == "evict":
            self._between = between.evict(
                self._transport, self._fillers(), options.concurrency, progress
            )

    def _fillers(self) -> Iterator[str]:
        """Prompts as long as the questions' that begin otherwise, without end."""
        for number in count():
            for prompt in self._prompts.values():
                yield f"{number} {prompt}"


def _reference(
    options: Options, questions: Sequence[Example]
) -> dict[Pass, list[Answer]]:
    """Pass 1 of an earlier result, empty where none was named."""
    if options.reference is None:
        return {}
    try:
        document = json.loads(options.reference.read_text())
        before = {
            name: [from_json(answer) for answer in document["answers"][name.value]]
            for name in FIRST
        }
        recorded = document["options"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_reference(options, f"no result ({error!r})") from error
    wanted = {name: getattr(options, name) for name in _SAME_QUESTIONS}
    wanted["compare"] = options.limits.compare
    for option, value in wanted.items():
        if recorded.get(option) != value:
            raise _no_reference(options, f"another --{option.replace('_', '-')}")
    asked = [question.id for question in questions]
    for answers in before.values():
        if [answer.question for answer in answers] != asked:
            raise _no_reference(options, "other questions, or not all of them")
    return before


def _no_reference(options: Options, found: str) -> ConfigError:
    return ConfigError(
        refusal(
            found=found,
            wanted="a complete pass 1 with the same questions and options",
            origin=str(options.reference),
            way_out="give the same options, or run without --reference",
        )
    )
