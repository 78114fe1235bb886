"""Whether the tier gave what the device gives, and whether it was asked at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gsm8k import repeats
from benchmarks.gsm8k.answers import Answer, Pass
from benchmarks.gsm8k.paired import Flips, at_least, flips

ALPHA = 0.01
"""Chance of calling noise a loss, on a server whose device passes differ too."""

_MAX_WARM = 0.5
"""Largest share of a cold prompt from the tier. The instructions, which all prompts
begin with, may be there; what is compared must not."""


_MAX_NOISE = 0.5
"""Share of outputs that may differ between two device passes, by tokens."""

_COMPARED = (Pass.COLD, Pass.CONTROL, Pass.TIER)


@dataclass(frozen=True, slots=True)
class Limits:
    """What must hold; see the options of the same names."""

    compare: str
    sources: str
    min_served: float
    min_accuracy: float
    max_acceptance_drop: float


Differences = Mapping[Pass, tuple[str, ...]]
"""By pass: the questions that went another way than in the first device pass."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Empty failures: the tier lost nothing that this run could see."""

    failures: tuple[str, ...]
    served: int
    questions: int
    flips: Mapping[Pass, Flips]
    """By pass: right and wrong, against the first device pass."""
    outputs: Differences
    logprobs: Differences
    """Empty tuples where no log-probabilities were asked for."""


Answers = Mapping[Pass, Sequence[Answer]]
"""Complete passes, each in the order of the questions."""


def judge(passes: Answers, limits: Limits) -> Verdict:
    """Compare the passes; every failure is one line."""
    device, tier = passes[Pass.DEVICE], passes[Pass.TIER]
    served = [answer for answer in tier if _served(answer, limits.sources)]
    outputs = _differences(passes, lambda answer: answer.output)
    logprobs = _differences(passes, lambda answer: answer.report.logprobs)
    changes = {
        name: flips([a.correct for a in device], [a.correct for a in passes[name]])
        for name in _COMPARED
    }
    failures = [
        *_sources(passes, served, limits),
        *_tokens(outputs, "outputs", limits),
        *_tokens(logprobs, "log-probabilities", limits),
        *_noise(outputs, len(tier), limits),
        *_answers(outputs, changes, limits),
        *_accuracy(device, limits),
        *_repeats(passes, outputs),
        *_acceptance(passes, limits),
    ]
    return Verdict(
        failures=tuple(failures),
        served=len(served),
        questions=len(tier),
        flips=changes,
        outputs=outputs,
        logprobs=logprobs,
    )


def accuracy(answers: Sequence[Answer]) -> float:
    return sum(answer.correct for answer in answers) / len(answers)


def acceptance(answers: Sequence[Answer]) -> float | None:
    """Share of MTP's drafts that were accepted; None without any."""
    proposed = sum(answer.report.drafts_proposed for answer in answers)
    accepted = sum(answer.report.drafts_accepted for answer in answers)
    return accepted / proposed if proposed else None


def _served(answer: Answer, sources: str) -> bool:
    report = answer.report
    return (report.cached_tokens if sources == "any" else report.tier_tokens) > 0


def _sources(passes: Answers, served: Collection[Answer], limits: Limits) -> list[str]:
    """Each pass must have come from where its name says."""
    tier = passes[Pass.TIER]
    failures = []
    if len(served) < limits.min_served * len(tier):
        silent = not any(answer.report.by_source for answer in tier)
        failures.append(
            f"pass 2 was not served by the tier: {len(served)} of {len(tier)} "
            f"questions had tokens from it; wanted {limits.min_served:.0%}"
            + ("; the server does not say where cached tokens were" if silent else "")
        )
    if limits.sources == "any":
        return failures
    warm = [
        answer
        for answer in passes[Pass.COLD]
        if answer.report.tier_tokens > _MAX_WARM * answer.report.prompt_tokens
    ]
    if warm:
        failures.append(
            f"pass 1 was not cold: the tier served {len(warm)} questions; use a new "
            "--seed or an empty tier"
        )
    for name in (Pass.DEVICE, Pass.CONTROL):
        missed = [
            answer
            for answer in passes[name]
            if answer.report.tier_tokens or not answer.report.device_tokens
        ]
        if missed:
            failures.append(
                f"pass '{name.value}' was not served by the device alone: "
                f"{len(missed)} of {len(passes[name])} questions; lower --group "
                "or give the device more memory"
            )
    return failures


def _tokens(differences: Differences, what: str, limits: Limits) -> list[str]:
    control, tier = (len(differences[name]) for name in (Pass.CONTROL, Pass.TIER))
    if limits.compare != "tokens" or not _exceeds(tier, control, exact=control == 0):
        return []
    return [
        f"{what} differ: {tier} questions from the tier, {control} in a second device "
        f"pass; first: {differences[Pass.TIER][0]}"
    ]


def _noise(outputs: Differences, questions: int, limits: Limits) -> list[str]:
    noise = len(outputs[Pass.CONTROL])
    if limits.compare != "tokens" or noise <= _MAX_NOISE * questions:
        return []
    return [
        f"two device passes differ in {noise} of {questions} outputs: tokens "
        "prove nothing; use a lower --concurrency or --compare answers"
    ]


def _answers(
    outputs: Differences, changes: Mapping[Pass, Flips], limits: Limits
) -> list[str]:
    if limits.compare != "answers":
        return []
    failures = []
    tier, noise = changes[Pass.TIER], changes[Pass.CONTROL].flips
    if _exceeds(tier.flips, noise, exact=not outputs[Pass.CONTROL]):
        failures.append(
            f"answers flip: {tier.flips} of {tier.questions} from the tier "
            f"({tier.lost} lost, {tier.gained} gained), {noise} in a second device pass"
        )
    cold = changes[Pass.COLD]
    if cold.gained > cold.lost and cold.p_value < ALPHA:
        failures.append(
            f"the device itself loses answers: {cold.gained} of {cold.questions} "
            f"questions that were right cold, {cold.lost} the other way"
        )
    return failures


def _exceeds(found: int, noise: int, *, exact: bool) -> bool:
    """More than a second device pass shows.

    Args:
        exact: two device passes were equal in every output, so any difference counts.
    """
    if exact:
        return found > noise
    return found > noise and at_least(found, found + noise) < ALPHA


def _accuracy(device: Sequence[Answer], limits: Limits) -> list[str]:
    if limits.compare == "answers" and accuracy(device) < limits.min_accuracy:
        return [
            f"only {accuracy(device):.1%} of the answers are right without the tier, "
            f"wanted {limits.min_accuracy:.0%}: flips prove nothing; "
            "use a better model or --compare tokens"
        ]
    return []


def _repeats(passes: Answers, outputs: Differences) -> list[str]:
    kinds: dict[str, Callable[[Sequence[Answer]], list[str]]] = {
        "loops": repeats.loops,
        "outputs shared by questions": repeats.same_output,
    }
    exact = not outputs[Pass.CONTROL]
    failures = []
    for kind, find in kinds.items():
        noise, found = (len(find(passes[name])) for name in (Pass.DEVICE, Pass.TIER))
        if _exceeds(found, noise, exact=exact):
            failures.append(f"{kind}: {found} from the tier, {noise} from the device")
    return failures


def _acceptance(passes: Answers, limits: Limits) -> list[str]:
    before, after = (acceptance(passes[name]) for name in (Pass.DEVICE, Pass.TIER))
    if before is None or after is None:
        return []
    if before - after > limits.max_acceptance_drop:
        return [
            f"MTP accepts {after:.3f} of its drafts from the tier, {before:.3f} from "
            f"the device; wanted at most {limits.max_acceptance_drop:g} less"
        ]
    return []


def _differences(passes: Answers, view: Callable[[Answer], object]) -> Differences:
    return {
        name: tuple(
            answer.question
            for first, answer in zip(passes[Pass.DEVICE], passes[name], strict=True)
            if view(first) != view(answer)
        )
        for name in _COMPARED
    }
