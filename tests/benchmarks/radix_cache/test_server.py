"""The command against a real server: its report adds up, and its death is survived."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.errors import REFUSED
from tests.benchmarks.small_server import DEVICE_TOKENS, with_host_memory

pytestmark = pytest.mark.server

SMALL = (
    *("--workload", "long_qa", "--sessions", "3", "--clients", "2", "--warm-up", "0"),
    *("--set", "system=70", "--set", "document=uniform:300:500", "--set", "turns=3"),
    *("--set", "question=20", "--set", "answer=4", "--passes", "2"),
)
REQUESTS = 18


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    logs = tmp_path_factory.mktemp("server")
    with with_host_memory(logs) as server:
        server.wait_ready()
        yield server


def start(url: str, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.radix_cache", "--url", url),
            *("--out", str(out), *SMALL, *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def counted(url: str) -> Counter[str]:
    """The server's counters, summed over all labels but the source of a hit."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = Counter[str]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                source = sample.labels.get("cache_source")
                key = sample.name + (f" {source}" if source else "")
                found[key] += int(sample.value)
    return found


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "radix_cache.json").read_text())
    return found


def test_reuse_by_tier_is_what_the_server_counted(
    server: SGLangServer, tmp_path: Path
) -> None:
    before = counted(server.url)
    child = start(server.url, tmp_path, "--require-tier", "host")
    told, messages = child.communicate(timeout=120)
    assert child.returncode == 0, messages
    assert f"ours: {REQUESTS} requests, device" in told
    grown = counted(server.url) - before
    found = result(tmp_path)["servers"][0]
    summary = found["summary"]
    sources = summary["tokens_by_source"]
    for tier in ("device", "host"):
        assert sources[tier] == grown[f"sglang:cached_tokens_total {tier}"] > 0
    assert summary["prompt_tokens"] == grown["sglang:prompt_tokens_total"]
    assert summary["answer_tokens"] == grown["sglang:generation_tokens_total"]
    assert summary["requests_beyond_reusable"] == 0
    counters = summary["counters"]
    for name in ("sglang:evicted_tokens_total", "sglang:load_back_bytes_total"):
        assert counters[name] == grown[name] > 0
    assert counters["sglang:prefetched_tokens_total"] is None
    assert found["facts"]["most_tokens"] < DEVICE_TOKENS
    assert list(found["facts"]["tiers"]) == ["device", "host"]


def test_kill_9_in_the_middle_keeps_what_was_measured(
    server: SGLangServer, tmp_path: Path
) -> None:
    name = "sglang:num_requests_total"
    before = counted(server.url)[name]
    child = start(server.url, tmp_path, "--passes", "50", "--seed", "1")
    while counted(server.url)[name] < before + 3 and child.poll() is None:
        time.sleep(0.05)
    server.kill9()
    _, messages = child.communicate(timeout=60)
    assert child.returncode == REFUSED
    told = messages.splitlines()[-1]
    assert told.startswith(f"{server.url}/")
    assert "; wanted an SGLang server that answers; " in told
    assert "Traceback" not in messages
    found = result(tmp_path)
    assert found["partial"]
    assert found["stopped"] in told
    assert len(found["servers"][0]["samples"]) >= 3
