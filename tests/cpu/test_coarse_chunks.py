"""Checkpoints on the grid of a tier whose chunks are coarser than the tree's pages.

Apart from the other tests of checkpoints: a server that waits keeps a core busy, and
theirs would wait all the time.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import generate
from sglang_qsa.demo.daemon import PATIENT, LMCacheDaemon
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import lmcache_flags, prompt, wait_until_stored
from tests.cpu.counters import metric

STORE_CHUNKS = os.environ.get("QSA_TEST_STORE_CHUNKS", "256").split(",")
"""Each takes two starts of a server; `make campaign` tries them all."""

pytestmark = pytest.mark.server


@pytest.mark.parametrize("chunk", map(int, STORE_CHUNKS))
def test_every_prompt_is_found_in_the_tier_after_a_restart(
    tiny_model: Path, tmp_path: Path, chunk: int
) -> None:
    """On its last chunk boundary below the end; a short one once it was seen again.

    Where two prompts parted a third one finds the state that the second took there,
    in one forward with its own.
    """
    source = random.Random(7)
    lengths = [1024, 1280, *(source.randrange(1025, 3000) for _ in range(8))]
    short, short_seen_again = 700, 768
    branch = prompt(max(lengths))[: 6 * chunk]
    with LMCacheDaemon(tmp_path, chunk_tokens=chunk) as daemon:
        daemon.wait_ready()
        flags = [*lmcache_flags(daemon), "--max-total-tokens", "65536"]
        server = SGLangServer(
            tiny_model,
            tmp_path,
            flags=[*flags, "--enable-metrics"],
            environment=PATIENT,
        )
        with server:
            server.wait_ready()
            empty = daemon.stored_objects()
            for length in (*lengths, short, short_seen_again, short_seen_again):
                generate(server.url, prompt(length), max_new_tokens=1)
            generate(server.url, branch + prompt(1400), max_new_tokens=1)
            wait_until_stored(daemon, empty, lambda _text: None)
            verdicts = "sglang_qsa_admissions_total"
            assert metric(server.url, f'{verdicts}{{store="lmcache",verdict="sh') == 2
            server.kill9()
            server.start()
            server.wait_ready()
            found = {
                length: generate(server.url, prompt(length), max_new_tokens=1)
                for length in (*lengths, short, short_seen_again)
            }
    expected = {
        length: anchor(length, chunk) for length in (*lengths, short_seen_again)
    }
    served = {length: answer.storage_tokens for length, answer in found.items()}
    assert served == expected | {short: 0}
