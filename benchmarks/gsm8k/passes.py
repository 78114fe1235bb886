"""The passes: cold, twice from the device, and once from the tier."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from benchmarks.gsm8k import harness
from benchmarks.gsm8k.answers import FIRST, Answer, Pass, Report
from benchmarks.gsm8k.harness import Example
from benchmarks.gsm8k.transport import NoAnswer, Transport


class Passes:
    """Asks, and keeps all answers, those of an interrupted run too.

    Args:
        prompts: by the id of each question.
        concurrency: requests under way at a time.
        group: questions that go through `FIRST` together.
    """

    def __init__(
        self,
        transport: Transport,
        questions: Sequence[Example],
        prompts: Mapping[str, str],
        *,
        concurrency: int,
        group: int,
    ) -> None:
        self._answers: dict[Pass, dict[str, Answer]] = {}
        self._transport = transport
        self._questions = questions
        self._prompts = prompts
        self._concurrency = concurrency
        self._group = group
        self._grade = harness.grader()
        self._failure: NoAnswer | None = None
        self._interrupted = False
        self._first_failure = threading.RLock()

    @property
    def answers(self) -> dict[Pass, list[Answer]]:
        """What there is so far, each pass in the order of the questions."""
        return {
            name: [kept[q.id] for q in self._questions if q.id in kept]
            for name, kept in self._answers.items()
        }

    def first(self) -> None:
        """Cold, device, and device again; group by group, so that the device has it.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            NoAnswer: a request failed; the run ends there.
        """
        starts = range(0, len(self._questions), self._group)
        groups = [self._questions[start : start + self._group] for start in starts]
        with self._bar("pass 1", len(FIRST) * len(self._questions)) as bar:
            for group in groups:
                for name in FIRST:
                    bar.set_postfix_str(name.value)
                    self._run(name, group, bar)

    def tier(self) -> None:
        """All questions once more.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            NoAnswer: a request failed; the run ends there.
        """
        with self._bar("pass 2", len(self._questions)) as bar:
            self._run(Pass.TIER, self._questions, bar)

    def _run(self, name: Pass, questions: Sequence[Example], bar: Any) -> None:
        kept = self._answers.setdefault(name, {})
        reports: dict[str, Report] = {}

        def ask(example: Example) -> Any:
            if self._failure is not None:
                raise harness.aborted()
            try:
                generation = self._transport.ask(self._prompts[example.id])
            except NoAnswer as error:
                self._fail(error)
                raise harness.aborted() from error
            reports[example.id] = generation.report
            return generation.sample

        def keep(
            example: Example, sample: Any, score: float, extracted: str | None
        ) -> None:
            kept[example.id] = Answer(
                question=example.id,
                text=sample.text,
                report=reports[example.id],
                correct=bool(score),
                extracted=extracted,
                finish_reason=sample.finish_reason or "",
                seconds=sample.generation_end_time - sample.generation_start_time,
            )
            bar.update()

        with _on_interrupt(self._interrupt):
            harness.run(questions, ask, self._grade, self._concurrency, keep)
        if self._interrupted:
            raise KeyboardInterrupt
        if self._failure is not None:
            raise self._failure

    def _interrupt(self) -> None:
        self._interrupted = True
        self._fail(NoAnswer("interrupted"))

    def _fail(self, error: NoAnswer) -> None:
        """Keep the first reason; the others follow from ending the connections."""
        with self._first_failure:
            if self._failure is None:
                self._failure = error
                self._transport.abort()

    def _bar(self, title: str, total: int) -> Any:
        return tqdm(total=total, desc=title, unit="answer", dynamic_ncols=True)


@contextmanager
def _on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `action`.

    As an exception it would wait, inside the harness, for all questions in the queue.
    """
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
