"""The command line of `python -m benchmarks.gsm8k`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gsm8k.answers import APIS
from benchmarks.gsm8k.verdict import Limits

GROUP_PER_REQUEST = 2
"""Questions in a group for each request under way, unless --group says otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; the parser's help says what each is."""

    url: str
    api: str
    model: str | None
    data: str
    questions: int
    shots: int
    seed: int
    max_tokens: int
    extra_body: dict[str, Any]
    concurrency: int
    group: int
    between: str
    restart_command: str | None
    settle_s: float
    timeout_s: float
    health_timeout_s: float
    reference: Path | None
    limits: Limits
    out: Path


def parse(argv: Sequence[str] | None) -> Options:
    """Raises SystemExit with code 2, as argparse does, where a value is no good."""
    found = vars(_parser().parse_args(argv))
    limits = Limits(**{name: found.pop(name) for name in Limits.__dataclass_fields__})
    found["url"] = found["url"].rstrip("/").removesuffix("/v1")
    found["group"] = found["group"] or GROUP_PER_REQUEST * found["concurrency"]
    return Options(**found, limits=limits)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gsm8k",
        description="Does a tier give the answers that the device gives?",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--url", required=True, help="of a running server, without /v1")
    add("--api", choices=APIS, default="chat")
    add("--model", help="as the server names it; asked for otherwise")
    add("--data", default="gsm8k", help="gsm8k, generated, or a JSONL file")
    add("--questions", type=_natural, default=200, help="0 for all of --data")
    add("--shots", type=_natural, default=5, help="worked examples in each prompt")
    add("--seed", type=int, default=0, help="another one gives other prompts")
    add("--max-tokens", type=_positive, default=512, help="of an answer")
    add(
        "--extra-body",
        type=json.loads,
        default={},
        metavar="JSON",
        help='added to each request: {"chat_template_kwargs": {...}}',
    )
    add("--concurrency", type=_positive, default=8, help="requests at a time")
    add(
        "--group",
        type=_natural,
        default=0,
        help="questions that the device can hold at once; 0: twice --concurrency",
    )
    _add_between(parser)
    _add_limits(parser)
    add("--out", type=Path, default=Path("gsm8k-result"), help="gets gsm8k.json, .md")
    return parser


def _add_between(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--between",
        choices=("flush", "evict", "none"),
        default="flush",
        help="empty device and host memory, or push prompts off the device only",
    )
    add("--restart-command", help="shell command run in place of --between")
    add("--settle-s", type=float, default=5.0, help="time for the tier to store all")
    add("--timeout-s", type=float, default=600.0, help="of one request")
    add("--health-timeout-s", type=float, default=1800.0, help="of a restart")
    add(
        "--reference",
        type=Path,
        metavar="JSON",
        help="result whose pass 1 is used again; only pass 2 is run",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--compare",
        choices=("answers", "tokens"),
        default="answers",
        help="what must be the same; tokens for a model that cannot answer",
    )
    add(
        "--sources",
        choices=("tier", "any"),
        default="tier",
        help="any: believe a server that reports cached tokens without their source",
    )
    add("--min-served", type=float, default=1.0, help="share of pass 2")
    add("--min-accuracy", type=float, default=0.5, help="below it flips prove nothing")
    add("--max-acceptance-drop", type=float, default=0.02, help="of MTP drafts")


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"found {value}; wanted 0 or more")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {value}; wanted 1 or more")
    return value
