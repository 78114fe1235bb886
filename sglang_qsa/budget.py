"""How host memory is divided between pages and checkpoints. Pure.

Pages without a checkpoint serve nothing, and a checkpoint without its pages neither.
The rule is one checkpoint for so many tokens of pages; a budget buys as many such
shares as it holds, and the rest of it pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.layout import Layout

TOKENS_PER_CHECKPOINT = 4096
"""About as many tokens as the bytes of one checkpoint would hold."""


@dataclass(frozen=True, slots=True)
class HostBudget:
    """Records that a budget holds, on one rank."""

    pages: int
    checkpoints: int
    page_bytes: int
    checkpoint_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.pages_bytes + self.checkpoints_bytes

    @property
    def pages_bytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def checkpoints_bytes(self) -> int:
        return self.checkpoints * self.checkpoint_bytes


def split_budget(
    layout: Layout,
    budget_bytes: int,
    tokens_per_checkpoint: int = TOKENS_PER_CHECKPOINT,
) -> HostBudget:
    """Divide `budget_bytes` of one rank.

    Raises:
        ConfigError: it does not hold one checkpoint with its pages.
    """
    page_bytes, checkpoint_bytes = layout.page_bytes, layout.checkpoint_bytes
    pages_per_checkpoint = max(tokens_per_checkpoint // layout.geometry.page_tokens, 1)
    share_bytes = checkpoint_bytes + pages_per_checkpoint * page_bytes
    checkpoints = budget_bytes // share_bytes
    if not checkpoints:
        raise ConfigError(
            refusal(
                found=f"{budget_bytes:,} B",
                wanted=f"at least {share_bytes:,} B: one checkpoint and the pages of "
                f"{pages_per_checkpoint * layout.geometry.page_tokens:,} tokens",
                origin="host memory budget (--hicache-size)",
                way_out="raise it, or lower host_tokens_per_checkpoint",
            )
        )
    pages = (budget_bytes - checkpoints * checkpoint_bytes) // page_bytes
    return HostBudget(pages, checkpoints, page_bytes, checkpoint_bytes)


def parse_bytes(text: str) -> int:
    """`32GB`, `512MB` or `1000000` as bytes; units are powers of ten.

    Raises:
        ConfigError: anything else.
    """
    units = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "B": 1}
    number, factor = text.strip().upper(), 1
    for unit, bytes_each in units.items():
        if number.endswith(unit):
            number, factor = number.removesuffix(unit).strip(), bytes_each
            break
    if not number.isdigit():
        raise ConfigError(
            refusal(
                found=repr(text),
                wanted="a whole number of B, MB, GB or TB",
                origin="--host-budget",
                way_out="write for example 32GB",
            )
        )
    return int(number) * factor
