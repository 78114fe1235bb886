"""Refuse a launch early, in one line, with exit code 2.

The cheap half of the preflight runs in the launching process before the model is
loaded. What only the scheduler can find (pools, the tier's canary) ends that
process with the same exit code; upstream would turn it into a traceback and exit
code 1, so the wait for the schedulers passes it on.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sglang_qsa.errors import REFUSED, QsaError
from sglang_qsa.hooks.base import Hook


def refuse(error: QsaError) -> SystemExit:
    """Print the refusal and return the exception that ends this process."""
    print(f"sglang_qsa: {error}", file=sys.stderr, flush=True)
    return SystemExit(REFUSED)


def check_before_resolution(original: Callable[[Any], None], server_args: Any) -> None:
    """Run the preflight once, in the launching process, before upstream resolves."""
    first = not getattr(server_args, "_resolution_finished", False)
    if first and multiprocessing.parent_process() is None:
        from sglang_qsa.preflight import check_launch

        try:
            check_launch(server_args)
        except QsaError as error:
            raise refuse(error) from None
    original(server_args)


def pass_on_refusal(
    original: Callable[..., Any], readers: Sequence[Any], processes: Sequence[Any]
) -> Any:
    """Exit with the scheduler's own code when it refused, instead of a traceback."""
    try:
        return original(readers, processes)
    except RuntimeError:
        if any(process.exitcode == REFUSED for process in processes):
            raise SystemExit(REFUSED) from None
        raise


CHECK_BEFORE_RESOLUTION = Hook(
    "check-before-resolution",
    "sglang.srt.server_args.ServerArgs.resolve_once",
    "around",
    check_before_resolution,
)
PASS_ON_REFUSAL = Hook(
    "pass-on-refusal",
    "sglang.srt.entrypoints.engine._wait_for_scheduler_ready",
    "around",
    pass_on_refusal,
)
