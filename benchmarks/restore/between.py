"""How the device is emptied, so that a prompt needs its tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.radix_cache.client import Server
from benchmarks.radix_cache.tokens import Tokens
from benchmarks.traces import Segment
from sglang_qsa.errors import ConfigError, refusal

FLUSH, EVICT = "flush", "evict"

OVERFILL = 1.5
"""Tokens sent to push others out, in capacities of the device."""

_FILLER_TOKENS = 32_768
"""Of the longest one: host memory keeps a checkpoint or more of each."""

_FILLERS = 4
"""So many of them fit on the device, where they are shorter than that."""


def capacity_tokens(info: Mapping[str, Any], url: str) -> int:
    """Tokens for which the device has room.

    Raises:
        ConfigError: the server does not say it.
    """
    found = info.get("max_total_num_tokens")
    if not found:
        raise ConfigError(
            refusal(
                found="no max_total_num_tokens",
                wanted="the capacity of the device",
                origin=f"{url}/server_info",
                way_out=f"use --between {FLUSH}",
            )
        )
    return int(found)


async def evict(
    server: Server,
    tokens: Tokens,
    label: str,
    *,
    capacity: int,
    most_tokens: int,
    on_sent: Callable[[int, int], None],
) -> None:
    """Push everything off the device by other prompts; host memory keeps it.

    Args:
        label: another one, other prompts.
        capacity: of the device, in tokens.
        most_tokens: longest prompt with its answer.
        on_sent: gets the tokens sent so far, and those that will be.
    """
    length = max(min(capacity // _FILLERS, most_tokens - 1, _FILLER_TOKENS), 1)
    wanted = int(OVERFILL * capacity)
    for number, sent in enumerate(range(0, wanted, length)):
        on_sent(sent, wanted)
        ids = tokens.of(Segment(f"{label}/filler/{number}", length))
        await server.generate(ids, 1)
