"""Checkpoints on the real server: what it reports to have found again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.reuse import BACKEND_FLAGS, sweep, sweep_lengths
from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from tests.cpu.counters import metric

PAGE = 64
pytestmark = pytest.mark.server


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
