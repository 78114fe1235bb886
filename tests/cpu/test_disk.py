"""HiCache through the plugin's backend: host memory, files, and who may read them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import generate
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.preflight import BACKEND_NAME

PAGE = 64
LENGTHS = (384, 1000, 2900)

pytestmark = pytest.mark.server


def server_on(
    model: Path, folder: Path, files: Path, **environment: str
) -> SGLangServer:
    extra = {"prefetch_threshold": PAGE, "file_storage_path": str(files)}
    return SGLangServer(
        model,
        folder,
        flags=[
            *("--radix-cache-backend", BACKEND_NAME, "--enable-hierarchical-cache"),
            *("--hicache-ratio", "2", "--hicache-io-backend", "direct"),
            *("--hicache-mem-layout", "page_first_direct"),
            *("--hicache-storage-backend", "file"),
            *("--hicache-storage-prefetch-policy", "wait_complete"),
            *("--hicache-storage-backend-extra-config", json.dumps(extra)),
        ],
        environment=environment,
    )


def wait_until_written(files: Path) -> None:
    """Block until the number of files has stayed the same for two seconds."""
    deadline, since, count = time.monotonic() + 60, time.monotonic(), 0
    while time.monotonic() < deadline:
        now = sum(1 for _ in files.rglob("*"))
        if now != count:
            since, count = time.monotonic(), now
        if count and time.monotonic() - since > 2:
            return
        time.sleep(0.1)
    raise AssertionError("nothing was written")


def test_restart_from_files(tiny_model: Path, tmp_path: Path) -> None:
    """Up to the anchor, the same bits as a device hit; other weights find nothing.

    Their files would have the same names in stock SGLang, and the same sizes.
    """
    files = tmp_path / "files"
    server = server_on(tiny_model, tmp_path, files)
    with server:
        server.wait_ready()
        for length in LENGTHS:
            generate(server.url, prompt(length))
        hits = {length: generate(server.url, prompt(length)) for length in LENGTHS}
        wait_until_written(files)
        server.kill9()
        server.start()
        server.wait_ready()
        for length, hit in hits.items():
            assert hit.device_tokens == anchor(length, PAGE)
            restored = generate(server.url, prompt(length))
            assert restored.storage_tokens == anchor(length, PAGE)
            assert restored.output_ids == hit.output_ids
            assert restored.logprobs == hit.logprobs
    other = server_on(
        tiny_model, tmp_path, files, SGLANG_QSA_WEIGHTS_FINGERPRINT="others"
    )
    with other:
        other.wait_ready()
        for length in LENGTHS:
            assert generate(other.url, prompt(length)).recomputed_tokens == length
