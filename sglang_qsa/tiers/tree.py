"""SGLang's prefix tree, with the admission rule between it and what lies behind.

A checkpoint that is not kept stays on the device. The tree offers it again whenever
another request comes by, and with it every page and checkpoint before it that the tier
does not have yet.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_qsa.config import load_config
from sglang_qsa.tiers.admission import TierAdmission
from sglang_qsa.tiers.second import SecondStates


class AdmittedRadixCache(SecondStates, UnifiedRadixCache):  # type: ignore[misc]
    """Backs up what the rule keeps, where there is storage to fill.

    Host memory alone is filled as upstream (sglang 0.5.23) fills it. With storage, one
    backup goes through both, so the rule stands before both.
    """

    tier = "hicache"
    """Labels the counters of the rule."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._admission = TierAdmission(self.tier, load_config().admission_min_tokens)
        self._offered: tuple[Any, int] | None = None
        self._kept: bool | None = None

    def match_prefix(self, params: Any) -> Any:
        """Match; the copy of a state that an earlier match had staged is called off.

        Upstream forgets to when storage is asked once more and the request waits on
        (`Scheduler._prefetch_after_device_hit_loss`). Once admitted, its forward would
        copy over the state that a load has brought, or go on from an evicted one.
        """
        if params.cow_mamba and params.req.kv.mamba_cow_src_index is not None:
            self._call_off_copy(params.req.kv)
        return super().match_prefix(params)

    def _call_off_copy(self, kv: Any) -> None:
        """As upstream does with a request that is not admitted."""
        self.req_to_token_pool.mamba_allocator.free(kv.mamba_pool_idx[None])
        kv.mamba_pool_idx = kv.mamba_cow_src_index = None

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **options: Any) -> None:
        """Publish what `req` has computed; back it up if the rule keeps it."""
        self._offered, self._kept = (req, up_to), None
        try:
            super().checkpoint_into_tree(req, up_to=up_to, **options)
            self._offer_found(req)
        finally:
            self._offered = None

    def _offer_found(self, req: Any) -> None:
        """A prompt that was found whole inserts nothing, so nothing was offered."""
        tree, node = self.tree_core, req.last_node
        if (
            self._filters
            and node is not None
            and not tree.is_root(node)
            and not tree.is_backuped(node)
        ):
            self._apply_cache_action(tree.build_backup_kv_action(node))

    def _apply_cache_action(self, action: Any) -> None:
        if not isinstance(action, BackupKV) or self._keeps():
            super()._apply_cache_action(action)

    def _keeps(self) -> bool:
        if self._offered is None or not self._filters:
            return True
        if self._kept is None:
            req, up_to = self._offered
            tokens = req.full_untruncated_fill_ids[:up_to]
            self._kept = self._admission.keeps(req, tokens, self.page_size)
        return self._kept

    @property
    def _filters(self) -> bool:
        return self.linker is not None or self.enable_storage
