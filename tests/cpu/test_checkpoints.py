"""Checkpoints on the real server: what it reports to have found again."""

from __future__ import annotations

import os
import random
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.reuse import BACKEND_FLAGS, sweep, sweep_lengths
from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.daemon import PATIENT, LMCacheDaemon
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import lmcache_flags, prompt, wait_until_stored

PAGE = 64
STORE_CHUNKS = os.environ.get("QSA_TEST_STORE_CHUNKS", "256").split(",")
"""Each takes two starts of a server; `make campaign` tries them all."""

pytestmark = pytest.mark.server


def metric(url: str, name: str) -> float:
    """Sum of a counter of the server over its labels; 0 if it was never counted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


# -- the device tree alone ---------------------------------------------------------


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Small chunks and little memory for one long prompt beside others."""
    flags = [*BACKEND_FLAGS, "--enable-metrics", "--chunked-prefill-size", "2048"]
    flags += ["--max-total-tokens", "24576", "--max-mamba-cache-size", "320"]
    server = SGLangServer(tiny_model, tmp_path_factory.mktemp("logs"), flags=flags)
    with server:
        server.wait_ready()
        yield server.url


def test_cases_21_and_22_sweep(server: str) -> None:
    lengths = sweep_lengths()
    assert len(lengths) >= 60
    assert set(range(128, 1101, 64)) <= set(lengths)
    rows = sweep(server, lengths)
    assert [row.length for row in rows if any(row.lost().values())] == []


def test_case_23_branch_and_anchor(server: str) -> None:
    flush_cache(server)
    first = prompt(1501)
    generate(server, first, max_new_tokens=1)
    second = first[:1024] + prompt(1502)[:600]
    assert generate(server, second, max_new_tokens=1).device_tokens < 1024
    assert generate(server, second, max_new_tokens=1).device_tokens == 1600
    third = first[:1024] + prompt(1503)[:600]
    assert generate(server, third, max_new_tokens=1).device_tokens == 1024


@pytest.mark.parametrize("answer_tokens", [8, 64, 150])
def test_short_follow_up_after_an_answer(server: str, answer_tokens: int) -> None:
    """Fewer than 64 new tokens: resumes in the answer, not before it."""
    first = prompt(700 + answer_tokens)
    answer = generate(server, first, max_new_tokens=answer_tokens)
    turn = first + list(answer.output_ids) + prompt(40)
    found = generate(server, turn, max_new_tokens=1).device_tokens
    # The last token of an answer has not been through the model.
    assert found == anchor(len(first) + answer_tokens, PAGE)
    again = generate(server, turn, max_new_tokens=1)
    assert again.device_tokens == anchor(len(turn), PAGE)


def test_prompts_under_memory_pressure(server: str) -> None:
    """Many chunked prompts at once: all are answered, as they are alone."""
    flush_cache(server)
    source = random.Random(5)
    prompts = [prompt(source.randrange(2000, 4000)) for _ in range(12)]
    assert sum(map(len, prompts)) > 24_576
    answers = at_once(server, prompts)
    assert all(answer.prompt_tokens for answer in answers)
    for tokens, answer in zip(prompts[:4], answers, strict=False):
        again = generate(server, tokens)
        assert again.output_ids == answer.output_ids
        assert again.device_tokens % PAGE == 0
    assert metric(server, 'sglang_qsa_checkpoints_total{result="published"') > 0
    assert metric(server, 'sglang_qsa_checkpoints_total{result="refused"') == 0


def at_once(url: str, prompts: Sequence[list[int]]) -> list[Generation]:
    answers: dict[int, Generation] = {}

    def send(at: int) -> None:
        answers[at] = generate(url, prompts[at])

    threads = [threading.Thread(target=send, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[at] for at in range(len(prompts))]


# -- with a tier of coarse chunks --------------------------------------------------


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
