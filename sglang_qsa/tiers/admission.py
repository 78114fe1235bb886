"""The admission rule as a tier asks it: with SGLang's requests, and counted."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable
from typing import Any

from sglang_qsa.admission import Admission
from sglang_qsa.boundary import floor
from sglang_qsa.metrics import count


class TierAdmission:
    """The rule of one tier; `store` labels its counters."""

    def __init__(self, store: str, min_tokens: int) -> None:
        self._store = store
        self._min_tokens = min_tokens
        self._rule = Admission(min_tokens=min_tokens)

    def keeps(self, req: Any, token_ids: array[int], grid_tokens: int) -> bool:
        """Whether the tier keeps what `req` has computed of `token_ids`.

        Args:
            req: `Req` of sglang 0.5.23, of which a middle chunk may be done.
            token_ids: its tokens so far.
            grid_tokens: what the tier can name: multiples of this.
        """
        depth = floor(len(token_ids), grid_tokens)
        if not depth:
            return False
        tokens = max(len(req.full_untruncated_fill_ids), len(token_ids))
        verdict = self._rule.admit(
            _key(req, token_ids[:depth]) if tokens < self._min_tokens else None,
            tokens=tokens,
            request=req.rid,
            fork=req.mamba_branching_seqlen == depth,
        )
        count("sglang_qsa_admissions_total", store=self._store, verdict=verdict.value)
        return verdict.kept


def _key(req: Any, token_ids: array[int]) -> Hashable:
    digest = hashlib.blake2b(token_ids.tobytes(), digest_size=16).digest()
    return digest, req.extra_key, req.cache_salt
