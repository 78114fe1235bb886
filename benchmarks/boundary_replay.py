"""A server with endless memory that follows one checkpoint rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from benchmarks.boundary_rules import Forward, Ideal, Rule, compared_rules
from benchmarks.traces import Request, page_keys
from sglang_qsa.admission import Admission, Anchor
from sglang_qsa.boundary import anchor, decode_depth, floor, may_publish
from sglang_qsa.geometry import PAGE_TOKENS


@dataclass(slots=True)
class Totals:
    """What one rule did on one trace."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    misled_tokens: int = 0
    """Reused with a state ahead of its key, thus wrong; not in `reused_tokens`."""
    forwards: int = 0
    checkpoints: int = 0
    misplaced: int = 0
    """Checkpoints whose state is ahead of their key."""
    pages: int = 0
    tier_reused_tokens: int = 0
    """Reusable, were the device emptied before every request."""
    tier_checkpoints: int = 0
    not_kept: int = 0
    """Checkpoints that the admission rule refused or let go."""

    def add(self, other: Totals) -> None:
        for each in fields(self):
            total = getattr(self, each.name) + getattr(other, each.name)
            setattr(self, each.name, total)


@dataclass(slots=True)
class _Tier:
    """What is kept beyond the device, under the admission rule."""

    store_grid: int
    admission: Admission = field(default_factory=Admission)
    held: set[int] = field(default_factory=set)
    forks: set[int] = field(default_factory=set)

    def offer(self, keys: Sequence[int], depth: int, tokens: int, request: int) -> None:
        """Keep or refuse the checkpoint at `depth` of a request."""
        if depth % self.store_grid:
            return
        keys = keys[: depth // PAGE_TOKENS]
        fork = keys[-1] in self.forks
        verdict = self.admission.admit(
            keys[-1], tokens=tokens, request=request, fork=fork
        )
        if verdict.kept and keys[-1] not in self.held:
            self.held.add(keys[-1])
            path = [Anchor(k, k in self.forks) for k in keys if k in self.held]
            crowded = {anchor.key for anchor in self.admission.crowded(path)}
            self.held.difference_update(crowded)


class Replay:
    """A server with endless memory under one rule."""

    def __init__(self, rule: Rule, chunk_tokens: int) -> None:
        self.rule = rule
        self.states: set[int] = set()
        self._totals = Totals()
        self._chunk_tokens = chunk_tokens
        self._pages: set[int] = set()
        self._misplaced: set[int] = set()
        self._tier = _Tier(rule.store_grid)

    def serve(self, request: Request, keys: Sequence[int]) -> None:
        """Look up, prefill, decode and finish one request.

        Args:
            keys: of the whole pages of its prompt and answer together.
        """
        totals, prompt_len = self._totals, request.prompt_tokens
        totals.requests += 1
        totals.prompt_tokens += prompt_len
        usable = keys[: anchor(prompt_len, PAGE_TOKENS) // PAGE_TOKENS]
        cached = _leading(usable, self._pages)
        hit = _deepest(usable[:cached], self.states)
        if hit and usable[hit - 1] in self._misplaced:
            totals.misled_tokens += hit * PAGE_TOKENS
        else:
            totals.reused_tokens += hit * PAGE_TOKENS
        totals.tier_reused_tokens += _deepest(usable, self._tier.held) * PAGE_TOKENS
        branch = cached * PAGE_TOKENS if cached > hit else None
        if fork := floor(branch or 0, self.rule.store_grid):
            self._tier.forks.add(usable[fork // PAGE_TOKENS - 1])
        self._prefill(request, keys, hit * PAGE_TOKENS, branch)
        resumed_at = _deepest(usable, self.states) * PAGE_TOKENS
        if resumed_at:
            self._tier.offer(keys, resumed_at, prompt_len, totals.requests)
        self._decode(request, keys)

    def _prefill(
        self, request: Request, keys: Sequence[int], hit_len: int, branch: int | None
    ) -> None:
        prefix_len, prompt_len, number = hit_len, request.prompt_tokens, 0
        budgets = request.budgets or (self._chunk_tokens,)
        while prefix_len < prompt_len:
            limit = prefix_len + budgets[number % len(budgets)]
            forward = Forward(prefix_len, limit, prompt_len, branch, hit_len)
            end = self.rule.end(forward)
            for depth, key_len in sorted(self.rule.published(forward, end)):
                self._publish(keys, depth, key_len, prompt_len)
            prefix_len, number = end, number + 1
        self._totals.forwards += number

    def _decode(self, request: Request, keys: Sequence[int]) -> None:
        """Only the last snapshot is published, when the request ends."""
        before = request.prompt_tokens
        computed = before + max(request.answer.tokens - 1, 0)
        if isinstance(self.rule, Ideal):
            forward = Forward(before, computed, computed, None, before)
            for page, key_len in self.rule.published(forward, computed):
                self._publish(keys, page, key_len, computed)
            return
        depth = decode_depth(self.rule.decode_interval, before, computed)
        if depth is not None:
            self._publish(keys, depth, depth, computed)

    def _publish(
        self, keys: Sequence[int], depth: int, key_len: int, tokens: int
    ) -> None:
        keys = keys[: key_len // PAGE_TOKENS]
        self._pages.update(keys)
        if keys[-1] not in self.states:
            self.states.add(keys[-1])
            if not may_publish(depth, key_len, PAGE_TOKENS):
                self._misplaced.add(keys[-1])
        self._tier.offer(keys, key_len, tokens, self._totals.requests)

    def totals(self) -> Totals:
        totals = self._totals
        totals.checkpoints = len(self.states)
        totals.misplaced = len(self._misplaced)
        totals.pages = len(self._pages)
        totals.tier_checkpoints = len(self._tier.held)
        verdicts = self._tier.admission.verdicts
        totals.not_kept = sum(n for verdict, n in verdicts.items() if not verdict.kept)
        return totals


def _leading(keys: Sequence[int], known: set[int]) -> int:
    """How many keys from the first on are known."""
    return next((i for i, key in enumerate(keys) if key not in known), len(keys))


def _deepest(keys: Sequence[int], known: set[int]) -> int:
    """Pages up to the last key that is known; 0 without one."""
    return next((i for i in range(len(keys), 0, -1) if keys[i - 1] in known), 0)


def replay(requests: Iterable[Request], chunk_tokens: int) -> dict[str, Totals]:
    """One trace under every rule, by the name of the rule."""
    servers = [Replay(rule, chunk_tokens) for rule in compared_rules()]
    for request in requests:
        keys = page_keys((*request.prompt, request.answer), PAGE_TOKENS)
        for server in servers:
            server.serve(request, keys)
    return {server.rule.name: server.totals() for server in servers}
