"""What happens between the passes, so that the second one needs the tier."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.gsm8k.transport import Transport
from sglang_qsa.demo.client import flush_cache, get_json
from sglang_qsa.demo.processes import Progress
from sglang_qsa.errors import QsaError, refusal

_POLL_INTERVAL_S = 0.5
_OVERFILL = 1.5
"""Tokens sent to push others out, in capacities of the device."""


class NotPrepared(QsaError):
    """The device could not be emptied."""


def restart(
    command: str, url: str, timeout_s: float, progress: Progress
) -> dict[str, Any]:
    """Run a shell command that replaces the server; wait until it is healthy.

    Raises:
        NotPrepared: the command failed, or no server was healthy in time.
    """
    started = time.monotonic()
    progress("restart command")
    ended = _run(command, timeout_s)
    if ended != "exit code 0":
        raise _not_prepared(ended, "exit code 0", "--restart-command", "run it by hand")
    while not _healthy(url):
        if time.monotonic() - started > timeout_s:
            raise _not_prepared(
                f"no healthy server after {timeout_s:.0f} s",
                "one",
                url,
                "look at its log, or raise --health-timeout-s",
            )
        progress("waiting for the server")
        time.sleep(_POLL_INTERVAL_S)
    return {"restart_s": round(time.monotonic() - started, 1)}


def flush(url: str) -> dict[str, Any]:
    """Drop all prefixes from device and host memory; storage keeps them.

    Raises:
        NotPrepared: this server has no such request, or was busy.
    """
    try:
        flush_cache(url)
    except OSError as error:
        raise _not_prepared(
            f"/flush_cache was refused ({error})",
            "an empty device",
            url,
            "use --between evict or --restart-command",
        ) from error
    return {}


def evict(
    transport: Transport, fillers: Iterator[str], concurrency: int, progress: Progress
) -> dict[str, Any]:
    """Push everything off the device by other prompts; host memory keeps it.

    Args:
        fillers: without end; none begins as a question does.
    Raises:
        NotPrepared: the server does not say how much its device holds.
        NoAnswer: a request failed.
    """
    wanted_tokens = int(_OVERFILL * _capacity_tokens(transport.url))
    sent_tokens = 0
    with ThreadPoolExecutor(concurrency) as pool:
        while sent_tokens < wanted_tokens:
            progress(f"evicting, {sent_tokens:,} of {wanted_tokens:,} tokens")
            batch = list(islice(fillers, concurrency))
            sent_tokens += sum(pool.map(partial(_send, transport), batch))
    return {"evicted_by_tokens": sent_tokens}


def _run(command: str, timeout_s: float) -> str:
    """How the command ended."""
    try:
        done = subprocess.run(command, shell=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"no end after {timeout_s:.0f} s"
    return f"exit code {done.returncode}"


def _send(transport: Transport, prompt: str) -> int:
    return transport.ask(prompt, max_tokens=1).report.prompt_tokens


def _capacity_tokens(url: str) -> int:
    try:
        return int(get_json(f"{url}/server_info")["max_total_num_tokens"])
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise _not_prepared(
            f"/server_info does not name max_total_num_tokens ({error!r})",
            "the capacity of the device",
            url,
            "use --restart-command",
        ) from error


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _not_prepared(found: str, wanted: str, origin: str, way_out: str) -> NotPrepared:
    return NotPrepared(
        refusal(found=found, wanted=wanted, origin=origin, way_out=way_out)
    )
