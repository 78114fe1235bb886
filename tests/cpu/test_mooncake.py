"""Mooncake Store behind HiCache: a prompt comes back after the server was killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import flush_cache, generate
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.preflight import BACKEND_NAME
from tests.mooncake import MooncakeMaster, MooncakeMemory, client_config

pytest.importorskip("mooncake.store", exc_type=ImportError)

PAGE = 64
LENGTHS = (384, 1000)
STOCK = pytest.mark.skipif(
    "QSA_TEST_RESTARTS" not in os.environ, reason="a server more; part of make campaign"
)

pytestmark = pytest.mark.server


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    with MooncakeMaster(tmp_path) as master:
        master.wait_ready()
        with MooncakeMemory(tmp_path, master) as memory:
            memory.wait_ready()
            yield master


def server_on(
    model: Path, folder: Path, master: MooncakeMaster, *, plugin: bool
) -> SGLangServer:
    extra = client_config(master) | {"prefetch_threshold": PAGE}
    return SGLangServer(
        model,
        folder,
        flags=[
            *(("--radix-cache-backend", BACKEND_NAME) if plugin else ()),
            *("--enable-hierarchical-cache", "--hicache-ratio", "2"),
            *("--hicache-io-backend", "direct"),
            *("--hicache-mem-layout", "page_first_direct"),
            *("--hicache-storage-backend", "mooncake"),
            *("--hicache-storage-prefetch-policy", "wait_complete"),
            *("--hicache-storage-backend-extra-config", json.dumps(extra)),
        ],
        with_plugin=plugin,
    )


def wait_until_stored(master: MooncakeMaster) -> None:
    """Until there are objects, and for a second no new ones."""
    deadline, since, count = time.monotonic() + 60, time.monotonic(), 0
    while not count or time.monotonic() - since < 1:
        assert time.monotonic() < deadline, "nothing was stored"
        now = len(master.object_names())
        if now != count:
            since, count = time.monotonic(), now
        time.sleep(0.1)


def test_case_29_restart(
    tiny_model: Path, tmp_path: Path, master: MooncakeMaster
) -> None:
    """All up to the anchor, as from the record store, with the bits of a device hit."""
    server = server_on(tiny_model, tmp_path, master, plugin=True)
    with server:
        server.wait_ready()
        for length in LENGTHS:
            generate(server.url, prompt(length))
        hits = {length: generate(server.url, prompt(length)) for length in LENGTHS}
        wait_until_stored(master)
        server.kill9()
        server.start()
        server.wait_ready()
        for length, hit in hits.items():
            assert hit.device_tokens == anchor(length, PAGE)
            restored = generate(server.url, prompt(length))
            assert restored.storage_tokens == anchor(length, PAGE)
            assert restored.output_ids == hit.output_ids
            assert restored.logprobs == hit.logprobs


@STOCK
def test_case_29_stock(
    tiny_model: Path, tmp_path: Path, master: MooncakeMaster
) -> None:
    """Every backup fails, in the log alone."""
    server = server_on(tiny_model, tmp_path, master, plugin=False)
    with server:
        server.wait_ready()
        generate(server.url, prompt(1000))
        deadline = time.monotonic() + 60
        while "does not carry registered slot side states" not in server.log:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        flush_cache(server.url)
        assert generate(server.url, prompt(1000)).recomputed_tokens == 1000
    assert not master.object_names()
