"""Arguments of `python -m benchmarks.radix_cache`."""

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
from benchmarks.radix_cache.samples import TIERS
from benchmarks.radix_cache.workloads import WORKLOADS
from sglang_qsa.errors import ConfigError, refusal

_ROUNDS = 10
"""Rounds of a pass where --round does not say it."""


def parse(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Read the command line; a bad one ends the process with one line and code 2."""
    parser = OneLineParser("python -m benchmarks.radix_cache", description)
    add_servers(parser)
    _add_requests(parser)
    _add_measurement(parser)
    options = parser.parse_args(argv)
    if options.trace and options.set:
        parser.error("--set has no meaning for --trace, whose lengths are recorded")
    options.open_sessions = options.open_sessions or options.sessions
    return options


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add("--workload", choices=WORKLOADS, default="chat")
    add("--trace", type=Path, help="a recorded trace instead, in Mooncake's format")
    add("--sessions", type=positive, default=32)
    add(
        "--open-sessions",
        type=positive,
        help="how many of them take turns with each other (default: all)",
    )
    add("--requests", type=positive, help="stop after so many, of each pass")
    add("--set", action="append", default=[], metavar="PART=LENGTHS")
    add("--scale", type=factor, default=1.0, help="of all lengths in tokens")
    add("--vocabulary", type=vocabulary, default=range(5, 492), metavar="LOW:HIGH")
    add("--seed", type=int, default=0)
    add(
        "--answers",
        choices=("own", "made-up"),
        default="own",
        help="what histories contain: the server's own answers, of the same lengths, "
        "or the same made-up tokens for both servers",
    )


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("measurement").add_argument
    add("--out", type=Path, required=True, help="gets radix_cache.json and .html")
    add("--clients", type=positive, default=8)
    add("--passes", type=positive, default=1, help="send everything so many times")
    add(
        "--flush",
        choices=("never", "start", "pass"),
        default="never",
        help="empty device and host memory before the first pass, or before each",
    )
    add("--round", type=positive, help="requests before the servers change places")
    add("--warm-up", type=natural, default=2, help="requests that are not measured")
    add(
        "--settle-s",
        type=factor,
        default=1.0,
        help="pause before the counters are read at the end, for backups",
    )
    add(
        "--require-tier",
        action="append",
        default=[],
        choices=TIERS,
        help="exit code 1 if --url served nothing from this tier",
    )
    add("--note", default="", help="goes into the result as it is")


def round_turns(options: argparse.Namespace, turns: int) -> int:
    """Turns of a round: enough for every client to send some."""
    return int(options.round or max(-(-turns // _ROUNDS), 4 * options.clients))


def as_arguments(options: argparse.Namespace) -> dict[str, object]:
    """The options as JSON values."""
    found = dict(vars(options))
    found["trace"] = str(options.trace.name) if options.trace else None
    found["out"] = str(options.out)
    found["vocabulary"] = [options.vocabulary.start, options.vocabulary.stop]
    return found


def check_turns(wanted: int, fitting: int, most_tokens: int) -> None:
    """Refuse a run without requests.

    Raises:
        ConfigError: no turn fits.
    """
    if not fitting:
        raise ConfigError(
            refusal(
                found=f"{wanted} turns, all longer than {most_tokens:,} tokens",
                wanted="turns that fit into the server",
                origin="--workload or --trace",
                way_out="make them shorter with --scale or --set",
            )
        )
