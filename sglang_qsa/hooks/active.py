"""What the hooks of this process follow: the checkpoint rule and the layout.

A scheduler process has one tree cache, and its backend says which layout its records
have, and, once that cache is built, which rule holds. In every other process, and with
upstream's own backends, there is neither and the hooks leave upstream alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_qsa.boundary import Grid
from sglang_qsa.layout import Layout


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """What the planner is asked with."""

    grid: Grid
    decode_interval: int
    """Tokens between two snapshots of a decoding request."""


_rule: CheckpointRule | None = None
_layout: Layout | None = None


def use(rule: CheckpointRule | None) -> None:
    """Let the hooks of this process follow `rule`, or upstream again."""
    global _rule
    _rule = rule


def rule() -> CheckpointRule | None:
    """The rule of this process, if its tree cache has one."""
    return _rule


def identify(layout: Layout | None) -> None:
    """Let keys and budgets of this process follow `layout`, or upstream again."""
    global _layout
    _layout = layout


def layout() -> Layout | None:
    """The layout of this process's records, if its backend is the plugin's."""
    return _layout
