"""Single objects inside the daemon: name them as it does, and remove them."""

from __future__ import annotations

import enum
import json
import urllib.request
from collections.abc import Sequence

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import HOST
from tests.pools import PAGE_TOKENS


class ObjectGroup(enum.IntEnum):
    """The daemon's object groups in the order the tier registers them.

    K, V and index keys of a chunk are one object: none of them can be lost alone.
    """

    PAGES = 0
    STATE = 1


def delete_object(
    daemon: LMCacheDaemon,
    model_name: str,
    tokens: Sequence[int],
    chunk: int,
    group: ObjectGroup,
) -> None:
    """Remove one object of the prefix `tokens` through the daemon's HTTP API."""
    from lmcache.v1.distributed.api import ipc_key_to_object_keys
    from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
    from lmcache.v1.multiprocess.token_hasher import TokenHasher

    key = IPCCacheServerKey(
        model_name=model_name,
        world_size=1,
        worker_id=None,
        token_ids=tuple(tokens),
        start=0,
        end=len(tokens),
        request_id="",
        cache_salt="",
    )
    hashes = TokenHasher(PAGE_TOKENS).compute_chunk_hashes(list(tokens))
    ((name,),) = ipc_key_to_object_keys(key, [hashes[chunk]], [int(group)])
    body = {
        "keys": [
            {
                "chunk_hash_hex": name.chunk_hash.hex(),
                "model_name": name.model_name,
                "kv_rank": name.kv_rank,
                "object_group_id": name.object_group_id,
                "cache_salt": name.cache_salt,
            }
        ],
        "tier": "l1",
        "force": True,
    }
    request = urllib.request.Request(
        f"http://{HOST}:{daemon.http_port}/cache/objects",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="DELETE",
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer = json.load(reply)
    assert answer == {"deleted": 1, "skipped": 0, "ok": True}, answer
