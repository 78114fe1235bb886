"""A daemon that is wrong in one way, as the canary and the breaker see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CHUNK = 64


@dataclass
class Lookup:
    request_id: str
    tokens: list[int]
    total_hit_tokens: int | None = None
    locks_held: bool = False
    lock_start: int = 0


@dataclass
class SmallDaemon:
    """A connector and its daemon: two chunks, one state, answers after some polls."""

    merges_groups: bool = False
    accepts_store: bool = True
    store_succeeds: bool = True
    loses: bool = False
    commits_after_lookups: int = 0
    polls_per_answer: int = 3

    chunk_size: int = CHUNK
    stored: list[int] | None = None
    polls: int = 0
    lookups: int = 0
    open_requests: set[str] = field(default_factory=set)
    locked: set[str] = field(default_factory=set)
    salts: set[str] = field(default_factory=set)

    def build_cache_salt(self, salt: str | None, extra: str | None) -> str:
        return f"{salt}+{extra}"

    def block_indices(self, *, tokens: int, first_page: int, slot: int) -> Any:
        assert first_page > 0
        assert slot > 0
        return [tokens]

    def submit_unguarded_store(
        self, request: str, tokens: list[int], indices: Any, *, cache_salt: str
    ) -> str | None:
        assert indices == [len(tokens)]
        self.open_requests.add(request)
        self.salts.add(cache_salt)
        self.stored = tokens
        return "store" if self.accepts_store else None

    def ready_prefix_count(self, operations: list[str]) -> int:
        return self._answered() * len(operations)

    def complete_store(self, _operation: str) -> bool:
        return self.store_succeeds

    def submit_unguarded_lookup(
        self, request: str, tokens: list[int], *, cache_salt: str
    ) -> Lookup:
        assert request not in self.open_requests
        self.open_requests.add(request)
        self.salts.add(cache_salt)
        self.lookups += 1
        return Lookup(request, tokens)

    def poll_unguarded_lookup(self, lookup: Lookup) -> int | None:
        if not self._answered():
            return None
        lookup.total_hit_tokens = self._found(lookup.tokens)
        lookup.locks_held = lookup.total_hit_tokens > 0
        if lookup.locks_held:
            self.locked.add(lookup.request_id)
        return lookup.total_hit_tokens

    def free_lookup_locks(self, request: str, *, start: int, end: int) -> None:
        assert request in self.open_requests
        assert start == 0
        assert end > 0
        self.locked.discard(request)

    def finish_request(self, request: str) -> None:
        self.open_requests.discard(request)

    def _answered(self) -> bool:
        self.polls += 1
        return self.polls % self.polls_per_answer == 0

    def _found(self, tokens: list[int]) -> int:
        committed = self.lookups > self.commits_after_lookups
        if self.loses or not committed or self.stored is None:
            return 0
        if tokens == self.stored or self.merges_groups:
            return len(tokens)
        return 0
