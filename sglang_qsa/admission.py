"""Which checkpoints are worth keeping beyond the device. Pure: standard library only.

One checkpoint costs as much as the pages of some 4,600 tokens, so the number of
checkpoints sizes every tier. The device tree keeps every anchor and evicts by use;
what goes further passes this rule, the same in every tier:

* a short prompt is kept once it is seen again, by another request;
* a fork, which two prompts have shared already, is kept at any length;
* a path keeps its deepest anchors and its forks, up to a number.

Give each tier an `Admission` of its own: what one tier saw says nothing about whether
another was asked before. Verdicts depend on the order of calls alone, so ranks that
see the same requests decide alike.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sglang_qsa.errors import ConfigError, refusal

MIN_TOKENS = 1024
ANCHORS_PER_PATH = 4
"""A cold prompt's rung and anchor, and both checkpoints of the turn after it."""
REMEMBERED_PROMPTS = 65_536

_SEVERAL = object()
"""In place of the request that sent a prompt first, once another has sent it."""


class Verdict(enum.Enum):
    """Why a checkpoint is kept, or is not; the values label the counters."""

    LONG = "long"
    SEEN_AGAIN = "seen_again"
    FORK = "fork"
    SHORT = "short"
    """Not kept: a prompt below the minimum that no other request has sent."""
    CROWDED = "crowded"
    """Not kept any longer: deeper anchors of its path took its place."""

    @property
    def kept(self) -> bool:
        return self not in (Verdict.SHORT, Verdict.CROWDED)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A checkpoint that a tier holds, as one entry of a path."""

    key: Hashable
    fork: bool = False
    """Two kept prompts go on from here in different ways."""


class Admission:
    """The rule for one tier, with a bounded memory of prompts seen once."""

    def __init__(
        self,
        *,
        min_tokens: int = MIN_TOKENS,
        anchors_per_path: int = ANCHORS_PER_PATH,
        remembered_prompts: int = REMEMBERED_PROMPTS,
    ) -> None:
        """
        Args:
            min_tokens: a request shorter than this is short; 0 keeps all.
            anchors_per_path: how many checkpoints one path keeps, forks included;
                0 for any number.
            remembered_prompts: how many short prompts seen once are remembered; the
                one that was not asked for longest is forgotten first.

        Raises:
            ConfigError: a number is negative, or nothing could be remembered.
        """
        _require_at_least(0, "min_tokens", min_tokens)
        _require_at_least(0, "anchors_per_path", anchors_per_path)
        _require_at_least(1, "remembered_prompts", remembered_prompts)
        self._min_tokens = min_tokens
        self._anchors_per_path = anchors_per_path
        self._remembered_prompts = remembered_prompts
        self._first_sender: OrderedDict[Hashable, Hashable] = OrderedDict()
        self.verdicts: Counter[Verdict] = Counter()
        """How often each was given."""

    def admit(
        self, key: Hashable, *, tokens: int, request: Hashable, fork: bool = False
    ) -> Verdict:
        """Whether the tier keeps the checkpoint under `key`.

        A request may ask again about the same key, after prefill and at its end: that
        is not a prompt seen again.

        Args:
            key: stands for all tokens up to the checkpoint, as tiers hash them; not
                looked at where `tokens` reaches the minimum.
            tokens: length of the request so far, not of what `key` covers.
            request: id of the request that computed or found the checkpoint.
            fork: two prompts are known to share exactly these tokens.
        """
        verdict = self._verdict(key, tokens, request, fork)
        self.verdicts[verdict] += 1
        return verdict

    def crowded(self, path: Sequence[Anchor]) -> tuple[Anchor, ...]:
        """The anchors of a path that it no longer keeps, shallowest first.

        Call after keeping a checkpoint, with all that the tier holds from the root
        down to it. The deepest and the forks stay, so a path of forks may exceed the
        number.
        """
        excess = len(path) - self._anchors_per_path if self._anchors_per_path else 0
        candidates = [anchor for anchor in path[:-1] if not anchor.fork]
        dropped = tuple(candidates[: max(excess, 0)])
        self.verdicts[Verdict.CROWDED] += len(dropped)
        return dropped

    def _verdict(
        self, key: Hashable, tokens: int, request: Hashable, fork: bool
    ) -> Verdict:
        if fork:
            return Verdict.FORK
        if tokens >= self._min_tokens:
            return Verdict.LONG
        sender = self._first_sender.setdefault(key, request)
        self._first_sender.move_to_end(key)
        if sender != request:
            self._first_sender[key] = _SEVERAL
            return Verdict.SEEN_AGAIN
        if len(self._first_sender) > self._remembered_prompts:
            self._first_sender.popitem(last=False)
        return Verdict.SHORT


def _require_at_least(low: int, name: str, found: int) -> None:
    if found < low:
        raise ConfigError(
            refusal(
                found=str(found),
                wanted=f"at least {low}",
                origin=f"admission rule, {name}",
                way_out="correct the value or leave the option out",
            )
        )
