"""Upstream's connector, made safe against a slow, dead or replaced daemon.

What upstream waits for without limit gets a time-out; what a time-out leaves in
doubt is reported, never assumed; and while the daemon is in doubt nothing is asked
of it (`breaker`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from typing import Any
from urllib.parse import urlsplit

import torch
from lmcache.integration.sglang.lmcache_mp_metadata import (
    LMCacheLoadOperation,
    LMCacheLookupOperation,
    LMCacheStoreOperation,
)
from lmcache.integration.sglang.unified_lmcache_mp_connector import (
    UnifiedLMCacheMPConnector,
)
from lmcache.v1.mp_observability.errors import LMCacheTimeoutError

from sglang_qsa import metrics
from sglang_qsa.config import QsaConfig
from sglang_qsa.errors import StoreUnavailable, refusal
from sglang_qsa.tiers.lmcache.breaker import Breaker
from sglang_qsa.tiers.lmcache.counts import STORE, Transfers
from sglang_qsa.tiers.lmcache.health import HealthMonitor
from sglang_qsa.tiers.lmcache.quarantine import RetrieveUnsettled

logger = logging.getLogger(__name__)

_RPC_ERRORS = (LMCacheTimeoutError, RuntimeError, ValueError, OSError)
"""What a future of lmcache 0.5.6 raises: no answer, a failed transport, a reply
that does not decode, an event that cannot be imported."""


class QsaConnector(UnifiedLMCacheMPConnector):  # type: ignore[misc]
    """See the module. Constructed by upstream through `hooks.lmcache.bound`."""

    def __init__(self, *, options: QsaConfig, **upstream: Any) -> None:
        self._options = options
        self.breaker = Breaker(self, backoff_s=options.recovery_backoff_s)
        self._lookup_deadlines: dict[str, float] = {}
        self._in_flight: list[Any] = []
        try:
            super().__init__(**upstream)
        except LMCacheTimeoutError as error:
            raise StoreUnavailable(
                refusal(
                    found=f"no answer to a request ({error})",
                    wanted="an LMCache 0.5.6 daemon that maps this server's pools",
                    origin=str(getattr(self, "server_url", "LMCache daemon")),
                    way_out="start `lmcache server` of that version, see its log, or "
                    "raise register_timeout_s",
                )
            ) from error
        self._transfers = Transfers(self._sglang_kv_adapter.arena.layout)
        self.health = HealthMonitor(
            ping=self._answers,
            register=self._register_again,
            on_death=self._fail_in_flight,
            address=_tcp_address(self.server_url),
            interval_s=options.heartbeat_interval_s,
        )

    # -- construction ------------------------------------------------------

    def _get_chunk_size(self) -> int:
        """First request of the parent's constructor, right after it read the YAML.

        Its `mq_timeout` (300 s by default) guards requests made on the scheduler
        thread; ours replaces it from here on.
        """
        self._mq_timeout = self._options.register_timeout_s
        return int(super()._get_chunk_size())

    def _ensure_heartbeat_started(self) -> None:
        """The health monitor pings; upstream's heartbeat would only log."""

    @property
    def operation_timeout(self) -> float:
        """How long a reset waits for one outstanding operation, on the scheduler."""
        return self._options.retrieve_timeout_s

    def clear(self) -> bool:
        """Empty the daemon; not while it is in doubt, since the call blocks."""
        return self._sync_success(self.usable) and bool(super().clear())

    def close(self) -> None:
        """Unregister and disconnect without waiting long for a daemon that hangs."""
        self._mq_timeout = self._options.retrieve_timeout_s
        super().close()

    def end_all_sessions(self) -> None:
        """Those of a running canary too, whose locks outlive its sessions."""
        self.breaker.drop_canary()
        super().end_all_sessions()

    def _flush_control_futures(self) -> None:
        """Part of `close`: one time-out for all of them, not one for each."""
        deadline = time.monotonic() + self._options.retrieve_timeout_s
        for future in self._control_futures:
            try:
                future.result(timeout=max(0.0, deadline - time.monotonic()))
            except _RPC_ERRORS as error:
                logger.warning("sglang_qsa: LMCache at shutdown: %s", error)
                break
        self._control_futures.clear()

    # -- identity ----------------------------------------------------------

    @staticmethod
    def build_cache_salt(cache_salt: str | None, extra_key: str | None) -> str:
        """Hash the request's salt and extra key into one namespace.

        Always hashed: a raw salt with '/', '@' or over 128 characters is rejected by
        the daemon's key type, which upstream turns into a silent miss.
        """
        if not cache_salt and not extra_key:
            return ""
        payload = json.dumps([cache_salt or "", extra_key or ""])
        return hashlib.sha256(payload.encode()).hexdigest()

    # -- look-up -----------------------------------------------------------

    def submit_lookup(
        self,
        request_id: str,
        token_ids: list[int],
        *,
        local_hit_tokens: int,
        cache_salt: str,
    ) -> LMCacheLookupOperation:
        """Ask for a prefix; while the daemon is in doubt the answer is a miss."""
        if not self.usable:
            metrics.count("sglang_qsa_lookups_total", store=STORE, result="closed")
            return LMCacheLookupOperation(
                request_id=request_id,
                token_ids=token_ids,
                local_hit_tokens=local_hit_tokens,
                cache_salt=cache_salt,
                total_hit_tokens=0,
            )
        operation = super().submit_lookup(
            request_id,
            token_ids,
            local_hit_tokens=local_hit_tokens,
            cache_salt=cache_salt,
        )
        self._lookup_deadlines[request_id] = (
            time.monotonic() + self._options.lookup_timeout_s
        )
        return operation

    def poll_lookup(self, operation: LMCacheLookupOperation) -> int | None:
        """Hit tokens, or None while the daemon works and its time is not up."""
        if operation.total_hit_tokens is not None:
            return int(operation.total_hit_tokens)
        deadline = self._lookup_deadlines.get(operation.request_id, float("inf"))
        late = self.is_lookup_leader and time.monotonic() > deadline
        if late:
            # The parent reads a missing submission as zero hits and shares that
            # result with every rank.
            operation.submission_future = None
            self._release_unseen_locks(operation)
            self.health.suspect(f"no look-up result for {operation.request_id}")
        hit = super().poll_lookup(operation)
        if hit is None:
            return None
        self._lookup_deadlines.pop(operation.request_id, None)
        result = "timeout" if late else "hit" if hit else "miss"
        metrics.count("sglang_qsa_lookups_total", store=STORE, result=result)
        return int(hit)

    def _release_unseen_locks(self, operation: LMCacheLookupOperation) -> None:
        """Unlock what the daemon will find for a look-up that nobody waits for.

        It handles this after the look-up and releases exactly what that one locked;
        the end of the session does not (lmcache 0.5.6).
        """
        end = len(operation.token_ids) // self.chunk_size * self.chunk_size
        key = self._create_key(operation, start=0, end=end, worker_id=None)
        self._track_control_future(
            self._req_client.free_lookup_locks(key, self.kv_world_size)
        )

    # -- load --------------------------------------------------------------

    def submit_load(
        self, operation: LMCacheLookupOperation, *args: Any, **kwargs: Any
    ) -> LMCacheLoadOperation:
        load = super().submit_load(operation, *args, **kwargs)
        self._track(load)
        self._transfers.started(load)
        return load

    def prepare_load_on_stream(
        self, operation: LMCacheLoadOperation, stream: Any
    ) -> bool:
        """Order `stream` after the load, waiting at most one time-out.

        Returns:
            True when every rank's load was accepted, False when none can write any
            more.

        Raises:
            RetrieveUnsettled: some rank's daemon may still write to the destination.
        """
        answer = self._wait(operation, lambda f, t: f.wait_on_stream(stream, timeout=t))
        if self._sync_success(answer is True):
            self._transfers.loaded(operation.end - operation.local_hit_tokens)
            return True
        # Closed at once on every rank: the next request of this scheduling pass
        # must not wait for the same daemon.
        self.breaker.open(f"load for {operation.request_id} was not accepted")
        settled = answer is False
        if answer is True:
            # A peer failed while our copy runs; its destination is about to be freed.
            settled = (
                self._wait(operation, lambda f, t: f.result(timeout=t)) is not None
            )
        operation.lookup.locks_held = False
        self._cleanup_lookup_result(operation.lookup)
        all_settled = self._sync_success(settled)
        metrics.count(
            "sglang_qsa_loads_total",
            store=STORE,
            result="rejected" if all_settled else "timeout",
        )
        if not all_settled:
            # `operation.result` stays unset: an operation with a result counts as
            # done, and this one's slots are held until it really is.
            raise RetrieveUnsettled
        operation.result = False
        return False

    def complete_load(
        self, operation: LMCacheLoadOperation, *, synchronize: bool = True
    ) -> bool:
        seen_before = operation.result is not None
        loaded = bool(super().complete_load(operation, synchronize=synchronize))
        if not seen_before:
            self._transfers.ended(operation, "load")
        return loaded

    def _wait(self, operation: LMCacheLoadOperation, how: Any) -> bool | None:
        """The daemon's answer, or None when there was none in time."""
        started = time.perf_counter()
        try:
            return bool(how(operation.future, self._options.retrieve_timeout_s))
        except _RPC_ERRORS as error:
            logger.warning(
                "sglang_qsa: LMCache load for %s: %s", operation.request_id, error
            )
            return None
        finally:
            waited_s = time.perf_counter() - started
            metrics.count("sglang_qsa_stall_seconds_total", waited_s, store=STORE)

    # -- store -------------------------------------------------------------

    def submit_store(self, *args: Any, **kwargs: Any) -> LMCacheStoreOperation | None:
        if not self.usable:
            metrics.count("sglang_qsa_stores_total", store=STORE, result="closed")
            return None
        return self.submit_unguarded_store(*args, **kwargs)

    def complete_store(
        self, operation: LMCacheStoreOperation, *, synchronize: bool = True
    ) -> bool:
        stored = bool(super().complete_store(operation, synchronize=synchronize))
        result = "ok" if stored else "failed"
        metrics.count("sglang_qsa_stores_total", store=STORE, result=result)
        self._transfers.ended(operation, "offload")
        if stored:
            self._transfers.moved(operation.end - operation.start, "offload")
        if not stored:
            # A daemon that was replaced rejects stores of an unknown server.
            self.health.suspect(f"store for {operation.request_id} failed")
        return stored

    # -- health ------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether the daemon may be asked anything; the same on every rank."""
        return self.breaker.usable

    def tick(self) -> None:
        """Close or re-open the breaker; called at every scheduler safe point."""
        self.breaker.update(ready=self.health.ready)

    def _answers(self) -> bool:
        """Health thread: one ping."""
        try:
            future = self._req_client.ping(self.instance_id)
            return bool(future.result(timeout=self._options.heartbeat_interval_s))
        except _RPC_ERRORS:
            return False

    def _register_again(self) -> bool:
        """Health thread: register with a daemon that may be another one by now."""
        try:
            chunk = super()._get_chunk_size()
            if chunk != self.chunk_size:
                logger.error(
                    "sglang_qsa: LMCache daemon now has chunk size %d, this server "
                    "was started with %d; it is not used",
                    chunk,
                    self.chunk_size,
                )
                return False
            self._registered = False
            self.register_kv_cache()
        except _RPC_ERRORS as error:
            logger.warning("sglang_qsa: cannot register with LMCache: %s", error)
            return False
        return True

    def _track(self, operation: Any) -> None:
        """Remember what a dead daemon will never answer."""
        self._in_flight = [f for f in self._in_flight if not f.is_done_.is_set()]
        future = getattr(operation.future, "raw_future_", None)
        if future is not None:
            self._in_flight.append(future)

    def _fail_in_flight(self) -> None:
        """Health thread: no process is left that could answer or write."""
        for future in list(self._in_flight):
            if not future.is_done_.is_set():
                future.set_exception(ConnectionError("LMCache daemon died"))

    # -- canary access, past the breaker -----------------------------------

    def submit_unguarded_lookup(
        self, request_id: str, token_ids: list[int], *, cache_salt: str
    ) -> LMCacheLookupOperation:
        return super().submit_lookup(
            request_id, token_ids, local_hit_tokens=0, cache_salt=cache_salt
        )

    def poll_unguarded_lookup(self, operation: LMCacheLookupOperation) -> int | None:
        hit = super().poll_lookup(operation)
        return None if hit is None else int(hit)

    def submit_unguarded_store(
        self,
        request_id: str,
        token_ids: list[int],
        device_indices: list[torch.Tensor],
        *,
        device_indices_start: int = 0,
        cache_salt: str,
    ) -> LMCacheStoreOperation | None:
        operation = super().submit_store(
            request_id,
            token_ids,
            device_indices,
            device_indices_start=device_indices_start,
            cache_salt=cache_salt,
        )
        if operation is not None:
            self._track(operation)
            self._transfers.started(operation)
        return operation

    def block_indices(
        self, *, tokens: int, first_page: int, slot: int
    ) -> list[torch.Tensor]:
        """Device indices by group of `tokens` tokens that end with one state."""
        pages = torch.arange(tokens, dtype=torch.int64, device=self.device)
        return list(
            self.device_indices_by_group(
                pages + first_page * self.page_size,
                mamba_value=torch.tensor([slot], dtype=torch.int64, device=self.device),
            )
        )


def _tcp_address(server_url: str) -> tuple[str, int] | None:
    url = urlsplit(server_url)
    if url.scheme != "tcp" or url.hostname is None or url.port is None:
        return None
    return url.hostname, url.port
