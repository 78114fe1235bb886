"""Every change to upstream behaviour, one small module per seam.

`HOOKS` matches `patches/manifest.toml` one to one; a test holds them together.
"""

from sglang_qsa.hooks.base import Binding, Hook
from sglang_qsa.hooks.chunks import CUT_FIRST_CHUNK, CUT_NEXT_CHUNK, WHOLE_PAGES
from sglang_qsa.hooks.decode import TRACK_GRID
from sglang_qsa.hooks.kernels import INSTALL, SCORE, SCORE_ROWS, SPARSE_DECODE, TOPK
from sglang_qsa.hooks.launch import CHECK_BEFORE_RESOLUTION, PASS_ON_REFUSAL
from sglang_qsa.hooks.lmcache import ADAPTER, CONNECTOR
from sglang_qsa.hooks.publish import PUBLISH
from sglang_qsa.hooks.retraction import COPY_IN, COPY_OUT, MOVE
from sglang_qsa.hooks.ring import RING
from sglang_qsa.hooks.routing import REGISTER_BACKEND, ROUTE_DEFAULT
from sglang_qsa.hooks.second import FREE_SECOND
from sglang_qsa.hooks.second_forward import (
    CARRY,
    GDN_ROWS,
    NGRAM_WINDOWS,
    PLE_WINDOWS,
)
from sglang_qsa.hooks.snapshot import SIDE_STATES, SNAPSHOT
from sglang_qsa.hooks.storage import STORAGE_IDENTITY
from sglang_qsa.hooks.weights import RETIRE_TIER

HOOKS: tuple[Hook | Binding, ...] = (
    CHECK_BEFORE_RESOLUTION,
    PASS_ON_REFUSAL,
    REGISTER_BACKEND,
    ROUTE_DEFAULT,
    RETIRE_TIER,
    SNAPSHOT,
    SIDE_STATES,
    CUT_FIRST_CHUNK,
    CUT_NEXT_CHUNK,
    WHOLE_PAGES,
    TRACK_GRID,
    PUBLISH,
    FREE_SECOND,
    CARRY,
    GDN_ROWS,
    PLE_WINDOWS,
    NGRAM_WINDOWS,
    STORAGE_IDENTITY,
    COPY_OUT,
    COPY_IN,
    MOVE,
    *RING,
    INSTALL,
    TOPK,
    SCORE,
    SCORE_ROWS,
    SPARSE_DECODE,
    CONNECTOR,
    ADAPTER,
)

__all__ = ["HOOKS", "Binding", "Hook"]
