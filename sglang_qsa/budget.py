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
    """Records that a budget holds, on one rank; sizes are with padding."""

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
    page_bytes, checkpoint_bytes = _strides(layout)
    pages_per_checkpoint = _pages_each(layout, tokens_per_checkpoint)
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


def split_ratio(
    layout: Layout, pages: int, tokens_per_checkpoint: int = TOKENS_PER_CHECKPOINT
) -> HostBudget:
    """`pages` of one rank, and checkpoints by the same rule; one at least."""
    checkpoints = max(pages // _pages_each(layout, tokens_per_checkpoint), 1)
    return HostBudget(pages, checkpoints, *_strides(layout))


def check_memory(budget: HostBudget, available_bytes: int) -> None:
    """Refuse before anything is pinned.

    Args:
        available_bytes: what this rank may take of the machine's memory.

    Raises:
        ConfigError: the budget is more than that.
    """
    if budget.used_bytes > available_bytes:
        raise ConfigError(
            refusal(
                found=f"{budget.used_bytes:,} B for {budget.pages:,} pages and "
                f"{budget.checkpoints:,} checkpoints",
                wanted=f"at most the {max(available_bytes, 0):,} B that this rank may "
                "take of the machine's memory",
                origin="host memory budget (--hicache-size, --hicache-ratio)",
                way_out="lower it",
            )
        )


def _strides(layout: Layout) -> tuple[int, int]:
    return layout.page.stride_bytes, layout.checkpoint.stride_bytes


def _pages_each(layout: Layout, tokens_per_checkpoint: int) -> int:
    return max(tokens_per_checkpoint // layout.geometry.page_tokens, 1)


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
