"""A server whose records are the plugin's, over the small model's pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.host_server import Server
from sglang_qsa.hooks import active
from tests.pools import build_pools, small_layout


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    """Needs the fixture `sglang_runtime`."""
    server = Server(**options)
    active.identify(small_layout(draft=server.draft))
    try:
        server.open(
            build_pools(
                pages=server.pages,
                slots=server.slots,
                draft=server.draft,
                device=server.device,
            )
        )
        yield server
    finally:
        active.identify(None)
