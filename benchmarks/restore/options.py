"""Arguments of `python -m benchmarks.restore`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import (
    OneLineParser,
    add_servers,
    factor,
    natural,
    positive,
    vocabulary,
)
from benchmarks.restore.between import EVICT, FLUSH

LENGTHS = (1024, 8192, 32_768, 131_072)


def parse(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Read the command line; a bad one ends the process with one line and code 2."""
    parser = OneLineParser("python -m benchmarks.restore", description)
    add_servers(parser)
    _add_prompts(parser)
    _add_measurement(parser)
    options = parser.parse_args(argv)
    options.prompt_tokens = list(dict.fromkeys(options.prompt_tokens))
    return options


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("prompts").add_argument
    add(
        "--prompt-tokens",
        type=positive,
        nargs="+",
        default=list(LENGTHS),
        metavar="N",
        help="lengths of the prefixes (default: %(default)s)",
    )
    add(
        "--tail-tokens",
        type=natural,
        default=12,
        help="come behind each of them, so that a length on the grid is found again "
        "whole (default: %(default)s)",
    )
    add("--answer-tokens", type=positive, default=8, help="of the compared answers")
    add("--vocabulary", type=vocabulary, default=range(5, 492), metavar="LOW:HIGH")
    add("--seed", type=int, default=0, help="another one for a tier that kept the last")


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("measurement").add_argument
    add("--out", type=Path, required=True, help="gets restore.json, .md and .svg")
    add("--repeats", type=positive, default=5)
    add("--warm-up", type=natural, default=1, help="repeats that are not measured")
    add(
        "--between",
        choices=(FLUSH, EVICT),
        default=FLUSH,
        help="how the device is emptied: /flush_cache, for disk, LMCache and linkers, "
        "or other prompts of 1.5 times its capacity, for host memory",
    )
    add(
        "--settle-s",
        type=factor,
        default=10.0,
        help="longest wait for backups; all of it where no counter tells their end",
    )
    add(
        "--require-tier",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="exit code 1 if a prompt did not come whole from a tier",
    )
    add("--note", default="", help="goes into the result as it is")


def as_arguments(options: argparse.Namespace) -> dict[str, object]:
    """The options as JSON values."""
    found = dict(vars(options))
    found["out"] = str(options.out)
    found["vocabulary"] = [options.vocabulary.start, options.vocabulary.stop]
    return found
