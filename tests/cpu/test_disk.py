"""HiCache through the plugin's backend: host memory, files, and who may read them."""

from __future__ import annotations

import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.preflight import BACKEND_NAME

PAGE = 64
LONG = 2900
LENGTHS = (384, 1000, LONG)
WITHOUT_LMCACHE = {"PYTHONPATH": str(Path(__file__).parent / "alone")}
"""Host memory and storage work where it is not installed."""

pytestmark = pytest.mark.server


BACKENDS: dict[str, dict[str, object]] = {
    "file": {},
    "dynamic": {
        "backend_name": "sglang_qsa",
        "module_path": "sglang_qsa.tiers.store.hicache",
        "class_name": "RecordStorage",
        "hicache_storage_pass_prefix_keys": True,
    },
    "nixl": {
        "plugin": {"posix": {"active": True}},
        "use_direct_io": False,
        "l3_cleaner_enabled": False,
    },
}
NIXL = pytest.param(
    "nixl",
    marks=pytest.mark.skipif(
        "QSA_TEST_RESTARTS" not in os.environ or find_spec("nixl") is None,
        reason="two starts; part of make campaign",
    ),
)


def server_on(
    model: Path, folder: Path, backend: str, files: Path, **environment: str
) -> SGLangServer:
    extra = BACKENDS[backend] | {"prefetch_threshold": PAGE}
    if backend == "nixl":
        environment["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(files)
    else:
        place = "directory" if backend == "dynamic" else "file_storage_path"
        extra[place] = str(files)
    return SGLangServer(
        model,
        folder,
        flags=[
            *("--radix-cache-backend", BACKEND_NAME, "--enable-hierarchical-cache"),
            *("--hicache-ratio", "2", "--hicache-io-backend", "direct"),
            *("--hicache-mem-layout", "page_first_direct"),
            *("--hicache-storage-backend", backend),
            *("--hicache-storage-prefetch-policy", "wait_complete"),
            *("--hicache-storage-backend-extra-config", json.dumps(extra)),
        ],
        environment=environment | WITHOUT_LMCACHE,
    )


def count_files(files: Path) -> int:
    return sum(1 for _ in files.rglob("*"))


def wait_until_written(files: Path, before: int) -> None:
    """Block until there are more files than `before`, for two seconds the same."""
    deadline, since, count = time.monotonic() + 60, time.monotonic(), before
    while time.monotonic() < deadline:
        now = count_files(files)
        if now != count:
            since, count = time.monotonic(), now
        if count > before and time.monotonic() - since > 2:
            return
        time.sleep(0.1)
    raise AssertionError("nothing was written")


@pytest.mark.parametrize("backend", ["file", "dynamic", NIXL])
def test_restart_from_disk(tiny_model: Path, tmp_path: Path, backend: str) -> None:
    """Up to the anchor, with the same bits as a device hit."""
    files = tmp_path / "files"
    server = server_on(tiny_model, tmp_path, backend, files)
    with server:
        server.wait_ready()
        assert "pools=page records + checkpoint records" in server.log
        before = count_files(files)
        for length in LENGTHS:
            generate(server.url, prompt(length))
        wait_until_written(files, before)
        if backend == "dynamic":
            assert_pages_of(files, LONG)
        before = count_files(files)
        hits = {length: generate(server.url, prompt(length)) for length in LENGTHS}
        wait_until_written(files, before)
        if backend == "dynamic":
            assert_pages_of(files, *LENGTHS)
        server.kill9()
        server.start()
        server.wait_ready()
        for length, hit in hits.items():
            assert hit.device_tokens == anchor(length, PAGE)
            restored = generate(server.url, prompt(length))
            assert restored.storage_tokens == anchor(length, PAGE)
            assert restored.output_ids == hit.output_ids
            assert restored.logprobs == hit.logprobs
        if backend == "dynamic":
            assert_flipped_bits_are_misses(server, files, hits)
    if backend == "file":
        assert_other_weights_find_nothing(tiny_model, tmp_path, files)


def assert_pages_of(files: Path, *lengths: int) -> None:
    """The store holds these prompts and nothing else: what is short waits for a
    second request."""
    wanted = sum(anchor(length, PAGE) // PAGE for length in lengths)
    assert len(list(files.glob("*/pages/*"))) == wanted


def assert_other_weights_find_nothing(
    tiny_model: Path, tmp_path: Path, files: Path
) -> None:
    """Their files would have the same names in stock SGLang, and the same sizes."""
    other = server_on(
        tiny_model, tmp_path, "file", files, SGLANG_QSA_WEIGHTS_FINGERPRINT="others"
    )
    with other:
        other.wait_ready()
        for length in LENGTHS:
            assert generate(other.url, prompt(length)).recomputed_tokens == length


def assert_flipped_bits_are_misses(
    server: SGLangServer, files: Path, hits: dict[int, Generation]
) -> None:
    """CASES 14 in a running server: not served, set aside, and computed again."""
    for page in files.glob("*/pages/*"):
        data = bytearray(page.read_bytes())
        data[len(data) // 2] ^= 1
        page.write_bytes(data)
    flush_cache(server.url)
    for length, hit in hits.items():
        answer = generate(server.url, prompt(length))
        assert answer.storage_tokens == 0
        assert answer.output_ids == hit.output_ids
    assert any(files.glob("*/quarantine/*"))
