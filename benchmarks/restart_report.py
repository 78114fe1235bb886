"""What `benchmarks.restart` makes of its samples: the result, and its table."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import machine
from benchmarks.restart_tiers import Tier
from sglang_qsa.demo.story import anchor_tokens
from sglang_qsa.layout import Layout

COLD = "cold"
DEVICE_HIT = "device hit"
FIRST_RESTORED = "restored, first request after the restart"
RESTORED = "restored"
HIT_AFTER_RESTART = "sent again after the restart"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt: `ttft_s` is the time of a request for a single token.

    `logprobs` are those of that token and of an answer right after it.
    """

    step: str
    ttft_s: float
    device_tokens: int
    tier_tokens: int
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    accepted_drafts: tuple[int, ...] = ()
    """Steps of the answer by the number of drafts that were accepted; MTP only."""


def as_result(
    options: argparse.Namespace,
    prompt_tokens: int,
    samples: list[Sample],
    layout: Layout,
    tier: Tier,
) -> dict[str, Any]:
    """Everything about one prompt, as JSON."""
    anchor = anchor_tokens(prompt_tokens)
    restored = _of(samples, FIRST_RESTORED, RESTORED)
    hits = _of(samples, DEVICE_HIT, HIT_AFTER_RESTART)
    record_bytes = (
        anchor // layout.geometry.page_tokens * layout.page_bytes
        + layout.checkpoint_bytes
    )
    added_s = _added_s(samples, anchor)
    return {
        "benchmark": "restart",
        "ok": _holds(restored, hits, anchor),
        "machine": machine.describe(),
        "baseline": "device hit of the same prompt on the same server",
        "note": options.note,
        "tier": tier.label,
        "arguments": {
            "prompt_tokens": prompt_tokens,
            "answer_tokens": options.answer_tokens,
            "repeats": options.repeats,
            "chunk_tokens": options.chunk_tokens,
            "mtp": options.mtp,
            "flags": options.flags,
        },
        "layout_id": layout.layout_id,
        "restored_tokens": anchor,
        "restored_bytes": record_bytes,
        "steps": [
            _summary(step, _of(samples, step), hits[0])
            for step in dict.fromkeys(sample.step for sample in samples)
        ],
        "device_hit_outcomes": len({hit.logprobs for hit in hits}),
        "restore_added_s": round(added_s, 4),
        "restore_gb_per_s": (
            round(record_bytes / added_s / 1e9, 2) if added_s > 0 else None
        ),
        "tier_facts": tier.facts(layout, anchor),
        "samples": [asdict(sample) for sample in samples],
    }


def _added_s(samples: list[Sample], anchor: int) -> float:
    """Median over a device hit: the one right after, where there was one."""
    restored = _of(samples, RESTORED)
    after = _of(samples, HIT_AFTER_RESTART)
    if any(hit.device_tokens != anchor for hit in after):
        # The linker leaves a restored prompt to its request.
        typical = statistics.median(s.ttft_s for s in _of(samples, DEVICE_HIT))
        return statistics.median(s.ttft_s for s in restored) - typical
    pairs = zip(restored, after, strict=True)
    return statistics.median(r.ttft_s - h.ttft_s for r, h in pairs)


def _holds(restored: list[Sample], hits: list[Sample], anchor: int) -> bool:
    """Served whole, with the tokens and accepted drafts of a device hit, and no further
    from the first device hit than the others are: not at all, where those agree."""
    spread = _difference(hits, hits[0])
    return _difference(restored, hits[0]) <= spread and all(
        s.tier_tokens == anchor and _answer(s) == _answer(hits[0]) for s in restored
    )


def _answer(sample: Sample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sample.output_ids, sample.accepted_drafts


def _difference(samples: list[Sample], yardstick: Sample) -> float:
    return max(
        abs(a - b)
        for sample in samples
        for a, b in zip(sample.logprobs, yardstick.logprobs, strict=True)
    )


def _of(samples: Sequence[Sample], *steps: str) -> list[Sample]:
    return [sample for sample in samples if sample.step in steps]


def _summary(step: str, samples: list[Sample], yardstick: Sample) -> dict[str, Any]:
    """One line of the table; differences are to the first device hit."""
    return {
        "step": step,
        "samples": len(samples),
        "median_ttft_s": round(statistics.median(s.ttft_s for s in samples), 4),
        "device_tokens": samples[0].device_tokens,
        "tier_tokens": min(s.tier_tokens for s in samples),
        "tokens_equal": all(_answer(s) == _answer(yardstick) for s in samples),
        "max_logprob_difference": _difference(samples, yardstick),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a table, with what it was measured on."""
    facts, arguments = result["machine"], result["arguments"]
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    chunk = (
        f" in chunks of {arguments['chunk_tokens']} tokens"
        if result["tier"] == "LMCache"
        else ""
    )
    lines = [
        f"# Restart and restore of a {arguments['prompt_tokens']:,}-token prompt",
        "",
        f"{facts['gpu'] or facts['cpu']}, {versions}, commit {facts['commit'][:12]}. "
        f"Tier: {result['tier']}{chunk}. Answers of "
        f"{arguments['answer_tokens']} tokens{_drafts(result)}. "
        f"Baseline: {result['baseline']}.",
        "",
        "| step | n | TTFT, s | from device | from the tier | tokens "
        "| max log-prob difference to the first device hit |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    lines += [
        f"| {row['step']} | {row['samples']} | {row['median_ttft_s']:.3f} "
        f"| {row['device_tokens']:,} | {row['tier_tokens']:,} "
        f"| {'equal' if row['tokens_equal'] else 'differ'} "
        f"| {row['max_logprob_difference']:g} |"
        for row in result["steps"]
    ]
    rate = result["restore_gb_per_s"]
    lines += [
        "",
        f"{result['restored_bytes'] / 1e6:,.1f} MB restored, median "
        f"{result['restore_added_s'] * 1e3:,.1f} ms over a device hit"
        + (f" ({rate:g} GB/s)." if rate else " (below the noise)."),
        "",
        _outcomes(result),
    ]
    if "overhead" in result["tier_facts"]:
        stored = result["tier_facts"]
        lines += [
            "",
            f"On disk: {stored['pages']:,} pages and {stored['checkpoints']} "
            f"checkpoints, warm-up included; {stored['stored_bytes'] / 1e6:,.1f} MB, "
            f"{stored['overhead']:.2%} more than their records.",
        ]
    if result["note"]:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


def _drafts(result: dict[str, Any]) -> str:
    accepted = result["samples"][0]["accepted_drafts"]
    if not accepted:
        return ""
    return (
        f" with MTP, the same accepted drafts counted as equal (cold: "
        f"{sum(n * steps for n, steps in enumerate(accepted))} of "
        f"{sum(accepted) * (len(accepted) - 1)})"
    )


def _outcomes(result: dict[str, Any]) -> str:
    count = result["device_hit_outcomes"]
    if count == 1:
        return "All device hits gave the same log-probabilities, bit for bit."
    return (
        f"Device hits by themselves gave {count} different sets of log-probabilities: "
        "bits cannot be compared here."
    )
