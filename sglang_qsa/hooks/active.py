"""The checkpoint rule of this process, for the hooks that carry it out.

A scheduler process has one tree cache. Its backend says which rule holds once that
cache is built; in every other process, and with upstream's own backends, there is
none and the hooks leave upstream alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_qsa.boundary import Grid


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """What the planner is asked with."""

    grid: Grid
    decode_interval: int
    """Tokens between two snapshots of a decoding request."""


_rule: CheckpointRule | None = None


def use(rule: CheckpointRule | None) -> None:
    """Let the hooks of this process follow `rule`, or upstream again."""
    global _rule
    _rule = rule


def rule() -> CheckpointRule | None:
    """The rule of this process, if its tree cache has one."""
    return _rule
