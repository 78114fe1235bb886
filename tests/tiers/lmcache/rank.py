"""One scheduler rank with real pools and a real tree cache, and no model.

The same for the plugin's cache and for upstream's, so that a failure case can be
shown to fail where it is known to.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from sglang_qsa.config import QsaConfig
from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.layout import Layout
from tests.pools import PAGE_PLANES, PAGE_TOKENS, Pools, build_pools, small_layout

POISON = 0xA5
DEADLINE_S = 20.0
OPTIONS = QsaConfig(
    lookup_timeout_s=5.0,
    retrieve_timeout_s=5.0,
    register_timeout_s=30.0,
    heartbeat_interval_s=0.2,
    recovery_backoff_s=0.5,
)
MODEL_PATH = "/models/tiny"

Answer = TypeVar("Answer")
Image = dict[str, list[torch.Tensor]]


def until(poll: Callable[[], Answer | None], what: str) -> Answer:
    """The first answer of `poll` that is not None."""
    deadline = time.monotonic() + DEADLINE_S
    while (answer := poll()) is None:
        assert time.monotonic() < deadline, f"{what} took too long"
        time.sleep(0.002)
    return answer


@dataclass
class Rank:
    """One scheduler's cache; pages and slots are chosen by the test."""

    pools: Pools
    cache: Any

    @property
    def connector(self) -> Any:
        return self.cache.lmcache_connector

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.cache.shutdown()

    # -- device memory -----------------------------------------------------

    def fill(self, seed: int, pages: Iterable[int], slots: Iterable[int] = ()) -> None:
        """Random bytes in these pages and state slots."""
        generator = torch.Generator().manual_seed(seed)
        for name, layers in self.pools.records().items():
            for layer in layers:
                for row in pages if name in PAGE_PLANES else slots:
                    layer[row].random_(0, 256, generator=generator)

    def poison(self, pages: Iterable[int], slots: Iterable[int] = ()) -> None:
        for name, layers in self.pools.records().items():
            for layer in layers:
                layer[list(pages if name in PAGE_PLANES else slots)] = POISON

    def image(self) -> Image:
        """A copy of all device memory."""
        return {
            name: [layer.clone() for layer in layers]
            for name, layers in self.pools.records().items()
        }

    # -- the tier ----------------------------------------------------------

    def indices(self, pages: Sequence[int], slot: int) -> list[torch.Tensor]:
        """Device indices by group for whole pages that end with one state."""
        tokens = torch.arange(PAGE_TOKENS)
        rows = torch.tensor(pages)[:, None] * PAGE_TOKENS + tokens
        return list(
            self.connector.device_indices_by_group(
                rows.flatten(), mamba_value=torch.tensor([slot])
            )
        )

    def store(
        self,
        request: str,
        tokens: Sequence[int],
        pages: Sequence[int],
        slot: int,
        salt: str = "",
    ) -> None:
        """Store `tokens`, which fill these pages, and the state of their end."""
        operation = self.connector.submit_store(
            request,
            list(tokens),
            self.indices(pages, slot),
            device_indices_start=0,
            cache_salt=salt,
        )
        assert operation is not None
        until(lambda: operation.query() or None, "a store")
        assert self.connector.complete_store(operation)
        self.connector.finish_request(request)
        # The daemon commits a store a moment after it has acknowledged it.
        attempts = itertools.count()

        def is_there() -> bool | None:
            found = self.found(f"{request}-{next(attempts)}", tokens, salt)
            return found == len(tokens) or None

        until(is_there, "the commit of a store")

    def look_up(self, request: str, tokens: Sequence[int], salt: str = "") -> Any:
        """A finished look-up; what it found stays locked until it is loaded."""
        lookup = self.connector.submit_lookup(
            request, list(tokens), local_hit_tokens=0, cache_salt=salt
        )
        until(lambda: self.connector.poll_lookup(lookup), "a look-up")
        return lookup

    def found(self, request: str, tokens: Sequence[int], salt: str = "") -> int:
        """How many tokens the tier could restore; nothing stays locked."""
        hit = int(self.look_up(request, tokens, salt).total_hit_tokens)
        self.connector.free_lookup_locks(request, start=0, end=hit)
        self.connector.finish_request(request)
        return hit

    def restore(self, lookup: Any, pages: Sequence[int], slot: int) -> bool:
        """Load what `lookup` found into these pages and this slot."""
        load = self.connector.submit_load(
            lookup, self.indices(pages, slot), local_hit_tokens=0
        )
        until(lambda: load.query() or None, "a load")
        loaded = bool(self.connector.complete_load(load))
        self.connector.finish_request(lookup.request_id)
        return loaded

    # -- a request, as the scheduler makes it ------------------------------

    def ask(self, request: Request, key_tokens: Sequence[int]) -> None:
        """Look the key up in the tier, and wait for the answer."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        match = self.cache.match_prefix(MatchPrefixParams(key=radix_key(key_tokens)))
        self.cache.prefetch_from_storage(
            request.cache_request_handle,
            match.last_host_node,
            list(key_tokens[match.device_prefix_len :]),
            matched_prefix_tokens=list(key_tokens[: match.device_prefix_len]),
        )
        handle = request.cache_request_handle
        until(lambda: self.cache.check_prefetch_progress(handle) or None, "an answer")

    def match(self, request: Request, key_tokens: Sequence[int]) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        params = MatchPrefixParams(key=radix_key(key_tokens), req=request)
        return self.cache.match_prefix(params)

    def load_back(self, request: Request, match: Any) -> int:
        """Start the load of what `match` found; how many tokens it brings."""
        from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

        loaded, _ = self.cache.init_load_back(
            InitLoadBackParams(
                best_match_node=match.best_match_node,
                host_hit_length=match.host_hit_length,
                req=request,
            )
        )
        return int(loaded)

    def resume(self, request: Request, prompt: Sequence[int]) -> int:
        """Tokens of `prompt` that `request` need not compute, loaded by now."""
        # Upstream's `Req._compute_max_prefix_len`: the last token is computed.
        key_tokens = prompt[:-1]
        self.ask(request, key_tokens)
        loaded = self.load_back(request, self.match(request, key_tokens))
        flow = self.cache._external_flows.get(request.rid)

        def finished() -> bool | None:
            self.cache.check_hicache_events()
            return flow is None or flow.load is None or flow.load_completed or None

        until(finished, "a load")
        return loaded


@dataclass
class RequestMemory:
    """What the tree cache keeps of a request's device memory."""

    mamba_pool_idx: torch.Tensor | None = None
    mamba_cow_src_index: torch.Tensor | None = None
    mamba_needs_clear: bool = True
    holds_mamba: bool = False


class Request:
    """What the tree cache reads and writes of SGLang's `Req`."""

    def __init__(self, rid: str) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self.rid = rid
        self.cache_request_handle = CacheRequestHandle(rid, 0)
        self.kv = RequestMemory()
        self.session = None
        self.storage_hit_length = 0
        self.host_hit_length = 0
        self.swa_host_hit_length = 0
        self.mamba_host_hit_length = 0


def radix_key(tokens: Sequence[int]) -> Any:
    """The tree's key of these tokens, cut to whole pages."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", tokens)).page_aligned(PAGE_TOKENS)


def qsa_rank(
    client_config: Path,
    layout: Layout | None = None,
    *,
    options: QsaConfig = OPTIONS,
    pools: Pools | None = None,
) -> Rank:
    """A rank with the plugin's cache, as `sglang_qsa.backend` builds it."""
    from sglang_qsa.tiers.lmcache.cache import QsaLMCacheRadixCache, lmcache_model_name

    pools = pools or build_pools()
    layout = layout or small_layout()
    cache = QsaLMCacheRadixCache(
        _cache_params(pools),
        arena=pools.open(layout),
        options=options,
        **_upstream(client_config, lmcache_model_name(MODEL_PATH, layout.layout_id)),
    )
    return Rank(pools, cache)


def stock_rank(client_config: Path) -> Rank:
    """A rank with upstream's own cache.

    Upstream refuses PLE windows at start. They are left out here, which is the least
    that lets it start.
    """
    from lmcache.integration.sglang.unified_kv_adapter import SGLangUnifiedKVAdapter
    from lmcache.integration.sglang.unified_lmcache_mp_connector import (
        UnifiedLMCacheMPConnector,
    )
    from sglang.srt.mem_cache.storage.lmcache.lmcache_unified_radix_cache import (
        LMCacheUnifiedRadixCache,
    )

    from sglang_qsa.hooks.lmcache import bound

    class WithoutWindows(SGLangUnifiedKVAdapter):  # type: ignore[misc]
        def _resolve_mamba_pool_tensors(self, mamba_pool: Any) -> Any:
            registered, mamba_pool._slot_siblings = mamba_pool._slot_siblings, ()
            try:
                return super()._resolve_mamba_pool_tensors(mamba_pool)
            finally:
                mamba_pool._slot_siblings = registered

    pools = build_pools()
    with bound(connector=UnifiedLMCacheMPConnector, adapter=WithoutWindows):
        cache = LMCacheUnifiedRadixCache(
            _cache_params(pools), **_upstream(client_config, "tiny-stock")
        )
    return Rank(pools, cache)


def _cache_params(pools: Pools) -> Any:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    return CacheInitParams(
        disable=False,
        req_to_token_pool=pools.requests,
        token_to_kv_pool_allocator=pools.allocator,
        page_size=PAGE_TOKENS,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        enable_mamba_extra_buffer=True,
    )


def _upstream(client_config: Path, name: str) -> dict[str, Any]:
    """Arguments of upstream's constructor."""
    return {
        "model_config": SimpleNamespace(
            model_path=name,
            attention_arch=None,
            hf_config=SimpleNamespace(architectures=[ARCHITECTURE]),
        ),
        "tp_size": 1,
        "tp_rank": 0,
        "lmcache_config_file": str(client_config),
        "forward_stream": None,
    }
