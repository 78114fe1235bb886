"""The tree cache of the LMCache tier."""

from __future__ import annotations

import functools
from array import array
from dataclasses import dataclass
from typing import Any

from lmcache.integration.sglang.lmcache_mp_metadata import LMCacheExternalFlow
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.storage.lmcache.lmcache_unified_radix_cache import (
    LMCacheUnifiedRadixCache,
)

from sglang_qsa.arena import Arena
from sglang_qsa.config import QsaConfig
from sglang_qsa.errors import (
    QsaError,
    UpstreamMismatch,
    refusal,
)
from sglang_qsa.hooks.lmcache import bound
from sglang_qsa.tiers.admission import TierAdmission
from sglang_qsa.tiers.lmcache.adapter import QsaKVAdapter
from sglang_qsa.tiers.lmcache.connector import QsaConnector
from sglang_qsa.tiers.lmcache.prove import prove
from sglang_qsa.tiers.lmcache.quarantine import HeldLoad, Quarantine, RetrieveUnsettled
from sglang_qsa.tiers.second import SecondStates


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What upstream's connector reads of a model config, under the name of the layout.

    The name is part of every key of the daemon and of its layout registry, so the
    layout id in it separates everything at once.
    """

    model_path: str
    attention_arch: Any
    hf_config: Any


class QsaLMCacheRadixCache(SecondStates, LMCacheUnifiedRadixCache):  # type: ignore[misc]
    """Upstream's LMCache tree cache over every plane, with a breaker around it."""

    lmcache_connector: QsaConnector

    def __init__(
        self, params: Any, *, arena: Arena, options: QsaConfig, **upstream: Any
    ) -> None:
        self._admission = TierAdmission("lmcache", options.admission_min_tokens)
        self._quarantine = Quarantine(
            free_tokens=params.token_to_kv_pool_allocator.free,
            free_state=params.req_to_token_pool.mamba_allocator.free,
        )
        with bound(
            connector=functools.partial(QsaConnector, options=options),
            adapter=functools.partial(QsaKVAdapter, arena=arena),
        ):
            super().__init__(params, **upstream)
        try:
            _require_bound(self.lmcache_connector)
            prove(self.lmcache_connector, arena, options)
        except QsaError:
            # Now, while the daemon can still be told; at exit it may be gone.
            super().shutdown()
            raise
        self.lmcache_connector.health.start()

    def check_hicache_events(self) -> None:
        """Scheduler safe point: finish operations, then judge the daemon."""
        super().check_hicache_events()
        connector = self.lmcache_connector
        connector.tick()
        if self._quarantine:
            self._quarantine.release(
                connector.ready_prefix_count(self._quarantine.operations)
            )

    def retire_tier(self, reason: str) -> None:
        """Never use the daemon again in the life of this server."""
        self.lmcache_connector.breaker.retire(reason)

    def has_pending_cache_operations(self) -> bool:
        """Quarantined slots count: a flush would hand them out again."""
        return bool(self._quarantine) or super().has_pending_cache_operations()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Drop a hit that is longer than the key asked for now.

        Its state is that of its own end. Upstream would clip the length and keep the
        state.
        """
        flow = self._external_flows.get(params.req.rid) if params.req else None
        if (
            flow is not None
            and flow.load is None
            and flow.total_hit is not None
            and flow.total_hit > len(params.key)
        ):
            self._retire_loaded_flow(params.req.rid)
        return super().match_prefix(params)

    def shutdown(self) -> None:
        if not self._lmcache_closed:
            self.lmcache_connector.health.stop()
        super().shutdown()

    def _submit_store(self, req: Any, token_ids: array[int]) -> None:
        """Offer what is computed so far; called after each forward that ends a chunk.

        The daemon evicts by itself, so nothing of a path is taken back here.
        """
        if not self.lmcache_connector.usable:
            return
        if self._admission.keeps(req, token_ids, self.lmcache_connector.chunk_size):
            super()._submit_store(req, token_ids)

    def _start_external_load(self, flow: LMCacheExternalFlow, req: Any) -> int | None:
        """Start a load; one that is left in doubt is a miss with its slots held."""
        if not self.lmcache_connector.usable:
            return None  # looked up before the breaker opened
        try:
            loaded: int | None = super()._start_external_load(flow, req)
        except RetrieveUnsettled:
            self._hold(flow, req)
            return None
        return loaded

    def _hold(self, flow: LMCacheExternalFlow, req: Any) -> None:
        """Undo what upstream's load path set up, without freeing the destination."""
        assert flow.load is not None
        self._quarantine.hold(
            HeldLoad(flow.load, flow.load.device_indices, flow.mamba_value)
        )
        if flow.allocated_request_mamba_for_load:
            # The request's own slot is copied to later, by us; no one writes it now.
            self.req_to_token_pool.mamba_allocator.free(flow.request_mamba_value)
            req.kv.mamba_pool_idx = None
        flow.load = None
        flow.mamba_value = None
        flow.request_mamba_value = None
        flow.allocated_request_mamba_for_load = False
        flow.free_mamba_after_load = False
        flow.load_req = None
        self._release_flow_anchor(flow)


def _require_bound(connector: object) -> None:
    adapter = getattr(connector, "_sglang_kv_adapter", None)
    found = (type(connector), type(adapter))
    if found != (QsaConnector, QsaKVAdapter):
        raise UpstreamMismatch(
            refusal(
                found=f"{found[0].__name__} over {found[1].__name__}",
                wanted="QsaConnector over QsaKVAdapter",
                origin="LMCache tree cache of SGLang",
                way_out="serve with the pinned sglang and lmcache versions",
            )
        )


def lmcache_model_name(model_path: str, layout_id: str) -> str:
    """Name of a deployment inside the daemon: readable, and unique by layout.

    The daemon reserves '@'; '/' would become folders in its file adapters.
    """
    basename = model_path.rstrip("/").rpartition("/")[2].replace("@", "-")
    return f"{basename}-{layout_id}"


__all__ = ["NamedModel", "QsaLMCacheRadixCache", "lmcache_model_name"]
