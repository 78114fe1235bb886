"""What the daemon has to show before the port opens.

A canary (does it keep pages and checkpoints apart?) and a round trip of random bytes
through every plane.
"""

from __future__ import annotations

import time

from lmcache.v1.mp_observability.errors import LMCacheTimeoutError

from sglang_qsa.arena import Arena
from sglang_qsa.config import QsaConfig
from sglang_qsa.errors import LayoutMismatch, StoreUnavailable, refusal
from sglang_qsa.tiers.lmcache.canary import CanaryResult, Verdict
from sglang_qsa.tiers.lmcache.connector import QsaConnector
from sglang_qsa.tiers.lmcache.selftest import TARGET_SLOT, SelfTest

_POLL_S = 0.005


def prove(connector: QsaConnector, arena: Arena, options: QsaConfig) -> None:
    """Canary and self-test, before the first request.

    Raises:
        StoreUnavailable: the daemon merges object groups, refuses or loses data.
        LayoutMismatch: a plane came back with other bytes.
    """
    test = SelfTest(arena, tokens=2 * connector.chunk_size)
    if not test.fits():
        raise LayoutMismatch(
            refusal(
                found=f"{arena.pages - 1} pages and {arena.slots - 1} state slots",
                wanted=f"at least {2 * test.pages} pages and {TARGET_SLOT} state slots",
                origin="device pools",
                way_out="raise --max-total-tokens or --max-mamba-cache-size, or lower "
                "the daemon's --chunk-size",
            )
        )
    test.plant()
    result = _run_canary(connector, options.register_timeout_s)
    if result is None or result.verdict is not Verdict.SOUND:
        raise _unsound(connector, result, options)
    load = connector.submit_load(
        result.lookup,
        connector.block_indices(
            tokens=test.tokens, first_page=test.target_page, slot=TARGET_SLOT
        ),
        local_hit_tokens=0,
    )
    try:
        loaded = bool(load.future.result(timeout=options.register_timeout_s))
    except LMCacheTimeoutError:
        raise _unsound(connector, None, options) from None
    connector.complete_load(load)
    differing = test.differing_planes() if loaded else list(arena.planes)
    test.clear()
    if differing:
        raise LayoutMismatch(
            refusal(
                found=f"other bytes in {', '.join(differing)} after a round trip",
                wanted="every plane byte-equal",
                origin=f"LMCache daemon {connector.server_url}",
                way_out="start an `lmcache server` of the pinned version",
            )
        )
    connector.breaker.accept()


def _run_canary(connector: QsaConnector, timeout_s: float) -> CanaryResult | None:
    """The canary to its end; None when the daemon stopped answering."""
    deadline = time.monotonic() + timeout_s
    while (result := connector.breaker.advance_canary()) is None:
        if not connector._sync_success(time.monotonic() < deadline):
            return None
        time.sleep(_POLL_S)
    return result


def _unsound(
    connector: QsaConnector, result: CanaryResult | None, options: QsaConfig
) -> StoreUnavailable:
    if result is None:
        found = f"no answer within {options.register_timeout_s:.0f} s"
    else:
        found = result.verdict.value
    way_out = (
        "start `lmcache server` with --separate-object-groups"
        if result is not None and result.verdict is Verdict.MERGED_GROUPS
        else "see the daemon's log; raise its --l1-size-gb if it is full"
    )
    return StoreUnavailable(
        refusal(
            found=found,
            wanted="a daemon that keeps pages and checkpoints apart and finds both",
            origin=f"LMCache daemon {connector.server_url}",
            way_out=way_out,
        )
    )
