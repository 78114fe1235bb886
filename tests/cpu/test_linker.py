"""The external linker in the real server: device pages straight to disk and back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import flush_cache, generate
from sglang_qsa.demo.processes import StartFailed
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.tiers.linker.options import CLASS, MODULE

PAGE = 64
LENGTHS = (384, 1000)
LONG = pytest.mark.skipif(
    "QSA_TEST_RESTARTS" not in os.environ, reason="two starts; part of make campaign"
)

pytestmark = pytest.mark.server


def server_on(
    model: Path, folder: Path, directory: Path, *, plugin: bool = True
) -> SGLangServer:
    config = {
        "linker_module_path": MODULE,
        "linker": CLASS,
        "linker_extra_config": {"directory": str(directory)},
    }
    return SGLangServer(
        model,
        folder,
        flags=[
            "--enable-unified-cache-external-linker",
            *("--unified-cache-external-linker-backend", "dynamic"),
            *("--unified-cache-external-linker-config", json.dumps(config)),
            *("--chunked-prefill-size", "512"),
        ],
        with_plugin=plugin,
    )


def wait_for_pages(directory: Path, *lengths: int) -> None:
    """Until the pages of these prompts are there, and no others."""
    wanted = sum(anchor(length, PAGE) // PAGE for length in lengths)
    deadline = time.monotonic() + 60
    while len(list(directory.glob("*/commits/*"))) < len(lengths):
        assert time.monotonic() < deadline, "nothing was stored"
        time.sleep(0.1)
    assert len(list(directory.glob("*/pages/*"))) == wanted


@pytest.mark.parametrize(
    "restart", [False, pytest.param(True, marks=LONG)], ids=["flush", "restart"]
)
def test_prompts_come_back(tiny_model: Path, tmp_path: Path, restart: bool) -> None:
    """Up to the anchor, with the bits of a device hit, damaged records apart."""
    directory = tmp_path / "store"
    server = server_on(tiny_model, tmp_path, directory)
    with server:
        server.wait_ready()
        for length in LENGTHS:
            generate(server.url, prompt(length))
        assert not any(directory.glob("*/pages/*"))  # short, and sent once
        hits = {length: generate(server.url, prompt(length)) for length in LENGTHS}
        wait_for_pages(directory, *LENGTHS)
        if restart:
            server.kill9()
            server.start()
            server.wait_ready()
        else:
            flush_cache(server.url)
        for length, hit in hits.items():
            assert hit.device_tokens == anchor(length, PAGE)
            restored = generate(server.url, prompt(length))
            # SGLang counts a linker's tokens as host memory's.
            assert restored.host_tokens == anchor(length, PAGE)
            assert restored.output_ids == hit.output_ids
            assert restored.logprobs == hit.logprobs


@LONG
def test_stock_does_not_start(tiny_model: Path, tmp_path: Path) -> None:
    """Upstream's pools for linkers have no place for PLE windows."""
    server = SGLangServer(
        tiny_model,
        tmp_path,
        flags=[
            "--enable-unified-cache-external-linker",
            *("--unified-cache-external-linker-backend", "mooncake"),
        ],
        with_plugin=False,
    )
    with server, pytest.raises(StartFailed) as failure:
        server.wait_ready()
    assert "supports FULL + MAMBA models only with a plain MLA pool" in (
        failure.value.log
    )
