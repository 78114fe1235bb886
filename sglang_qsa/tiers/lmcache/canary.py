"""Proof that the daemon keeps pages and checkpoints apart.

Without `--separate-object-groups` an LMCache daemon stores the padding slot as the
state of every chunk that has none, and serves it later. No handshake reports the
flag, so it is tried: two chunks are stored under a random salt, a state only with
the second. The first chunk alone must then be a miss, both together a hit.

The bytes stored are whatever lies in the first pages and slot, in use or not:
reading them harms nobody, and nobody can look them up again.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_qsa.tiers.lmcache.connector import QsaConnector

_CHUNKS = 2
_LOOKUPS = 50


class Verdict(enum.Enum):
    """What the canary found."""

    SOUND = "sound"
    MERGED_GROUPS = "the daemon stores pages and checkpoints as one object"
    STORE_REFUSED = "the daemon refused to store"
    NOT_FOUND = "the daemon does not find what it has just stored"


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The verdict, and the locked look-up of both chunks when it is `SOUND`."""

    verdict: Verdict
    lookup: Any = None


class Canary:
    """One trial, advanced without blocking from the scheduler thread.

    Every rank must create and advance it in step: each step is a collective.
    """

    def __init__(self, connector: QsaConnector, nonce: int) -> None:
        self._connector = connector
        self._salt = connector.build_cache_salt(f"canary-{nonce}", None)
        self._name = f"sglang-qsa-canary-{nonce}"
        tokens = _CHUNKS * connector.chunk_size
        self.tokens = [(nonce + i) % 1_000_003 for i in range(tokens)]
        self._store_id = f"{self._name}-store"
        self._lookups: list[Any] = []
        self._steps = self._run()

    def advance(self) -> CanaryResult | None:
        """Do what can be done now; None while the daemon has not answered."""
        return next(self._steps)

    def close(self) -> None:
        """Drop the daemon's sessions and read locks of this trial.

        The end of a session leaves its locks in place (lmcache 0.5.6).
        """
        connector = self._connector
        for lookup in self._lookups:
            if lookup.locks_held:
                connector.free_lookup_locks(
                    lookup.request_id,
                    start=lookup.lock_start,
                    end=lookup.total_hit_tokens,
                )
            connector.finish_request(lookup.request_id)
        connector.finish_request(self._store_id)

    def _run(self) -> Generator[CanaryResult | None, None, None]:
        connector, chunk = self._connector, self._connector.chunk_size
        operation = connector.submit_unguarded_store(
            self._store_id,
            self.tokens,
            connector.block_indices(tokens=len(self.tokens), first_page=1, slot=1),
            cache_salt=self._salt,
        )
        if operation is None:
            yield CanaryResult(Verdict.STORE_REFUSED)
            return
        while not connector.ready_prefix_count([operation]):
            yield None
        if not connector.complete_store(operation):
            yield CanaryResult(Verdict.STORE_REFUSED)
            return
        # Both first: the daemon commits a store a moment after it acknowledged it, and
        # only a chunk that is known to be there proves anything by being a miss.
        for attempt in range(_LOOKUPS):
            both = yield from self._look_up(f"both-{attempt}", self.tokens)
            if both.total_hit_tokens == len(self.tokens):
                break
        else:
            yield CanaryResult(Verdict.NOT_FOUND)
            return
        first = yield from self._look_up("first", self.tokens[:chunk])
        if first.total_hit_tokens:
            yield CanaryResult(Verdict.MERGED_GROUPS)
            return
        yield CanaryResult(Verdict.SOUND, both)

    def _look_up(
        self, suffix: str, tokens: list[int]
    ) -> Generator[CanaryResult | None, None, Any]:
        connector = self._connector
        lookup = connector.submit_unguarded_lookup(
            f"{self._name}-{suffix}", tokens, cache_salt=self._salt
        )
        self._lookups.append(lookup)
        while connector.poll_unguarded_lookup(lookup) is None:
            yield None
        return lookup
