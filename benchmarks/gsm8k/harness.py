"""What comes from SGLang's own evaluation harness: data, prompt, transport, grading.

The only module that imports `sgl_eval`; its underscored modules are why the version is
pinned in requirements/bench.txt.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from benchmarks.gsm8k.generated import problems
from sglang_qsa.errors import ConfigError, refusal

TASK = "gsm8k"
SPLIT, SHOTS_SPLIT = "test", "train"
POOL_QUESTIONS = 64
"""Of a file without a training split, the first so many (at most a third) are shots."""


class Example(Protocol):
    """A row of the harness."""

    id: str
    inputs: dict[str, Any]
    target: Any
    meta: dict[str, Any]


Grade = Callable[[Any, Any], tuple[float, str | None]]


def load(
    data: str, count: int, seed: int, shots: int
) -> tuple[list[Example], list[Example]]:
    """Questions, and the pool that their worked examples are drawn from.

    Args:
        data: `gsm8k`, `generated`, or a JSONL file of `problem`, `expected_answer` and,
            for worked examples, `reference_solution`.
        count: of questions, 0 for all.
        shots: worked examples in each prompt; with 0 no question is kept for them.
    Raises:
        ConfigError: the harness is not installed, or there is no such data.
    """
    loader = _module("evals._loader")
    if data == TASK:
        try:
            pool = loader.load_via_prepare(TASK, [SHOTS_SPLIT])(None)
            return loader.load_via_prepare(TASK, [SPLIT])(count or None), pool
        except OSError as error:
            raise _unusable(
                data, f"the harness cannot load it ({error})", "--data generated"
            ) from error
    if data == "generated":
        rows = problems(count + POOL_QUESTIONS, seed)
        examples = [loader._row_to_example(row, 0, data) for row in rows]
        cut = POOL_QUESTIONS
    else:
        examples = _rows(loader, data)
        cut = min(POOL_QUESTIONS, len(examples) // 3) if shots else 0
    questions = examples[cut:][: count or None]
    if not questions:
        raise _unusable(data, "none", "ask for some, or name another file")
    return questions, examples[:cut]


def _rows(loader: ModuleType, data: str) -> list[Example]:
    if not Path(data).is_file():
        raise _unusable(data, "no such file", "name gsm8k, generated or a JSONL file")
    try:
        rows: list[Example] = loader.load_from_path(data)(None)
    except SystemExit as error:
        found = str(error).removeprefix("error: ")
        raise _unusable(
            data, found, "each row needs problem and expected_answer"
        ) from error
    return rows


def prompts(
    questions: Sequence[Example], pool: Sequence[Example], shots: int, seed: int
) -> dict[str, str]:
    """The prompt of each question, by its id.

    Every question gets worked examples of its own. With the same ones for all, the
    device would hold most of every prompt after the first restored one, and the tier
    would be asked for little.

    Raises:
        ConfigError: the pool has fewer examples.
    """
    if len(pool) < shots:
        raise _unusable(
            "--shots", f"{len(pool)} worked examples, not {shots}", "lower it"
        )
    prompt = _module("evals._prompts")
    template = prompt.resolve_prompt("math")
    solved = [
        {
            "problem": example.inputs["problem"],
            "solution": f"{example.meta.get('reference_solution', '').strip()}\n"
            f"\\boxed{{{example.target}}}",
        }
        for example in pool
    ]
    return {
        question.id: prompt.render_prompt(
            template,
            problem=question.inputs["problem"],
            few_shot_examples=random.Random(f"{seed} {question.id}").sample(
                solved, shots
            ),
        )
        for question in questions
    }


def template() -> tuple[str, str]:
    """What stands before and after a problem in a prompt without worked examples."""
    prompt = _module("evals._prompts")
    rendered = prompt.render_prompt(
        prompt.resolve_prompt("math"), problem="\0", few_shot_examples=[]
    )
    before, _, after = rendered.partition("\0")
    return before, after


def grader() -> Grade:
    """The harness's own: the last `\\boxed{}` must equal the expected answer."""
    evaluator = _module("_vendored.nemo_skills.evaluator.math").MathEvaluator({})
    grade: Grade = _module("evals._math").make_score_one_fn(evaluator)
    return grade


def defaults() -> Any:
    """The task's generation parameters: greedy, and no limit of the output."""
    _module("evals")
    return _module("registry").get(TASK).default_gen


def sampler(base_url: str, model: str | None, warnings: logging.Handler) -> Any:
    """The harness's chat transport, which tries each request once.

    Args:
        warnings: gets what it logs, in place of the terminal.
    """
    module = _module("sampler")
    module.LOG.propagate = False
    module.LOG.addHandler(warnings)
    return module.ChatCompletionSampler(base_url, model, max_retries=1)


def sample(text: str, completion_tokens: int | None, finish_reason: str | None) -> Any:
    """An answer of another transport, in the form that the grader reads."""
    return _module("types").Sample(
        text=text, completion_tokens=completion_tokens, finish_reason=finish_reason
    )


def run(
    questions: Sequence[Example],
    ask: Callable[[Example], Any],
    grade: Grade,
    threads: int,
    on_answer: Callable[[Example, Any, float, str | None], None],
) -> None:
    """Ask with so many threads; grade and report on this thread.

    `ask` ends the run by raising `aborted()`.
    """
    _module("runner").run_examples(
        TASK,
        list(questions),
        lambda example, _repeat: ask(example),
        grade,
        num_threads=threads,
        progress=False,
        on_sample_scored=lambda example, _repeat, sample, score, extracted: on_answer(
            example, sample, score, extracted
        ),
    )


def aborted() -> Exception:
    """What `ask` raises to end a run."""
    error: Exception = _module("runner").WorkerAborted()
    return error


def client_errors() -> tuple[type[Exception], ...]:
    """What the client of the harness raises for a request that failed."""
    import openai

    return (openai.OpenAIError,)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"sgl_eval.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            refusal(
                found=f"no module {error.name}",
                wanted="SGLang's evaluation harness",
                origin="benchmarks.gsm8k",
                way_out="pip install --no-deps -r requirements/bench.txt",
            )
        ) from error


def _unusable(data: str, found: str, way_out: str) -> ConfigError:
    return ConfigError(
        refusal(found=found, wanted="questions", origin=data, way_out=way_out)
    )
