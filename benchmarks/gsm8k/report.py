"""The result as JSON, and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.gsm8k import repeats
from benchmarks.gsm8k.answers import Answer, Pass, to_json
from benchmarks.gsm8k.paired import CONFIDENCE, Flips
from benchmarks.gsm8k.verdict import Verdict, acceptance, accuracy

_HEADINGS = (
    "pass",
    "answers",
    "right",
    "device tokens",
    "tier tokens",
    "other output",
    "other logprobs",
    "loops",
    "shared",
    "MTP accepts",
    "median s",
)


def as_result(
    head: Mapping[str, Any],
    passes: Mapping[Pass, Sequence[Answer]],
    verdict: Verdict | None,
    interrupted: str,
) -> dict[str, Any]:
    """Everything, for a file; a run that was interrupted has no verdict."""
    result = {
        "ok": verdict is not None and not verdict.failures,
        "interrupted": interrupted,
        "failures": list(verdict.failures) if verdict else [],
        **head,
        "summary": {name.value: _summary(kept) for name, kept in passes.items()},
    }
    if verdict is not None:
        result["served"] = {"questions": verdict.served, "of": verdict.questions}
        result["flips"] = {
            "confidence": CONFIDENCE,
            **{name.value: asdict(found) for name, found in verdict.flips.items()},
        }
        result["different"] = {
            what: {name.value: list(questions) for name, questions in found.items()}
            for what, found in (
                ("outputs", verdict.outputs),
                ("logprobs", verdict.logprobs),
            )
        }
    result["answers"] = {
        name.value: [to_json(answer) for answer in kept]
        for name, kept in passes.items()
    }
    return result


def as_markdown(
    passes: Mapping[Pass, Sequence[Answer]], verdict: Verdict, note: str
) -> str:
    """A row per pass, the flips, and the verdict."""
    rows = [_HEADINGS, *(_row(name, kept, verdict) for name, kept in passes.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.rjust, row, widths)) + " |" for row in rows]
    rule = "|".join("-" * (width + 1) + ":" for width in widths)
    lines.insert(1, f"|{rule}|")
    return "\n".join(
        [
            note,
            "",
            *lines,
            "",
            *(_flips(name, found) for name, found in verdict.flips.items()),
            f"Served by the tier: {verdict.served} of {verdict.questions} questions.",
            "",
            *(f"FAILED  {failure}" for failure in verdict.failures),
            *(() if verdict.failures else ("OK",)),
            "",
        ]
    )


def _summary(answers: Sequence[Answer]) -> dict[str, Any]:
    if not answers:
        return {"answers": 0}
    reports = [answer.report for answer in answers]
    return {
        "answers": len(answers),
        "accuracy": accuracy(answers),
        "truncated": sum(answer.finish_reason == "length" for answer in answers),
        "prompt_tokens": sum(report.prompt_tokens for report in reports),
        "device_tokens": sum(report.device_tokens for report in reports),
        "tier_tokens": sum(report.tier_tokens for report in reports),
        "cached_tokens": sum(report.cached_tokens for report in reports),
        "loops": repeats.loops(answers),
        "shared_outputs": repeats.same_output(answers),
        "mtp_acceptance": acceptance(answers),
        "median_s": median(answer.seconds for answer in answers),
    }


def _row(name: Pass, answers: Sequence[Answer], verdict: Verdict) -> tuple[str, ...]:
    summary = _summary(answers)
    accepted = summary["mtp_acceptance"]
    return (
        name.value,
        f"{summary['answers']:,}",
        f"{summary['accuracy']:.1%}",
        f"{summary['device_tokens']:,}",
        f"{summary['tier_tokens']:,}",
        *(
            f"{len(found[name]):,}" if name in found else "–"
            for found in (verdict.outputs, verdict.logprobs)
        ),
        f"{len(summary['loops']):,}",
        f"{len(summary['shared_outputs']):,}",
        "–" if accepted is None else f"{accepted:.3f}",
        f"{summary['median_s']:.2f}",
    )


def _flips(name: Pass, found: Flips) -> str:
    return (
        f"Against the first device pass, {name.value}: {found.lost} lost, "
        f"{found.gained} gained; accuracy changes by {found.low:+.1%} to "
        f"{found.high:+.1%} ({CONFIDENCE:.0%} confidence), "
        f"McNemar p = {found.p_value:.2g}."
    )
