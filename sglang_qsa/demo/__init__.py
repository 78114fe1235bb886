"""The project's story on one machine: prompt, kill -9, restart, restore.

A tiny model of the real architecture is served by the real SGLang with the real
LMCache daemon, on a GPU or without one. Importing this package is cheap; torch is
only imported by the processes it starts.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

FAILED = 1
NOT_STARTED = 2

_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sglang-qsa demo`."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a table"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the server runs (default: cpu, which works on every machine)",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="keep the logs there (default: a temporary directory, kept on failure)",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="only start the server on the tiny model and leave it running",
    )
    parser.add_argument(
        "--port", type=int, default=30000, help="with --serve: where it listens"
    )
    parser.add_argument(
        "server_flags",
        nargs="*",
        metavar="-- launch_server flags",
        help="with --serve: given to the server; without any, the LMCache tier is on",
    )


def main(args: argparse.Namespace) -> int:
    """Run the demo: 0 if it held, 1 if it did not, 2 if nothing could be started."""
    from sglang_qsa.demo import report, serve, story
    from sglang_qsa.demo.processes import StartFailed

    if args.server_flags and not args.serve:
        print("sglang-qsa demo: server flags need --serve", file=sys.stderr)
        return NOT_STARTED
    # Children are stopped by `with` blocks, which the default action would skip. A
    # shell ignores the interrupt for what it starts in the background.
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if args.serve:
            return serve.run(args.device, args.port, args.server_flags, args.work_dir)
        with report.ProgressLine() as progress:
            result = story.run(args.device, args.work_dir, progress)
    except StartFailed as error:
        print(f"sglang-qsa demo: {error}", file=sys.stderr)
        return NOT_STARTED
    except story.Interrupted as error:
        print(f"sglang-qsa demo: {error}", file=sys.stderr)
        return FAILED
    print(report.as_json(result) if args.json else report.as_table(result))
    return 0 if result.ok else FAILED


def _exit_on_sigterm(_signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_SIGTERM_EXIT_CODE)
