"""The circuit breaker: whether the daemon may be asked anything.

It opens on the first doubt and closes only after a canary. Both happen at the same
step on every rank: each change follows a collective.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from sglang_qsa import metrics
from sglang_qsa.tiers.lmcache.canary import Canary, CanaryResult, Verdict

if TYPE_CHECKING:
    from sglang_qsa.tiers.lmcache.connector import QsaConnector

logger = logging.getLogger(__name__)


class Breaker:
    """Starts open; `accept` closes it after the proof at start.

    Args:
        connector: gives the collectives, and what the canary needs.
        backoff_s: seconds between a failed canary and the next one.
    """

    def __init__(self, connector: QsaConnector, *, backoff_s: float) -> None:
        self.usable = False
        self._connector = connector
        self._backoff_s = backoff_s
        self._retry_at = 0.0
        self._retired = False
        self._canary: Canary | None = None

    def update(self, *, ready: bool) -> None:
        """Follow this rank's view of the daemon, once all ranks share it.

        One collective per call, plus those of a running canary.
        """
        due = self.usable or time.monotonic() >= self._retry_at
        if not self._connector._sync_success(ready and due and not self._retired):
            if self.usable:
                self.open("it does not answer or has lost our registration")
            self.drop_canary()
        elif not self.usable:
            result = self.advance_canary()
            if result is not None:
                self._judge(result)

    def open(self, reason: str) -> None:
        """Ask the daemon nothing until it was probed and passed a canary again."""
        self._set(False)
        self._connector.health.suspect(reason)

    def retire(self, reason: str) -> None:
        """Open for good; called on every rank alike."""
        self._retired = True
        self._set(False)
        logger.error("sglang_qsa: LMCache daemon no longer used: %s", reason)

    def advance_canary(self) -> CanaryResult | None:
        """One step of the running canary, starting one if there is none."""
        if self._canary is None:
            connector = self._connector
            nonce = random.getrandbits(48) if connector.is_lookup_leader else 0
            self._canary = Canary(connector, connector._sync_leader_int(nonce))
        return self._canary.advance()

    def accept(self) -> None:
        """The canary was good: use the daemon."""
        self.drop_canary()
        self._set(True)
        logger.info("sglang_qsa: LMCache daemon %s in use", self._connector.server_url)

    def drop_canary(self) -> None:
        """Forget a running canary and what the daemon holds for it."""
        if self._canary is not None:
            self._canary.close()
            self._canary = None

    def _judge(self, result: CanaryResult) -> None:
        if result.verdict is Verdict.SOUND:
            self.accept()
            return
        logger.error(
            "sglang_qsa: LMCache daemon not used: %s; next trial in %.0f s",
            result.verdict.value,
            self._backoff_s,
        )
        self.drop_canary()
        self._retry_at = time.monotonic() + self._backoff_s

    def _set(self, usable: bool) -> None:
        self.usable = usable
        metrics.gauge("sglang_qsa_tier_usable", usable, store="lmcache")
