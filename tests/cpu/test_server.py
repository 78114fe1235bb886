"""The harness itself: does the tiny server answer rightly, and would a loss show?

A demo in which nothing can go wrong proves nothing. So a plane is lost on purpose,
each in turn, and the answer must change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.daemon import PATIENT, LMCacheDaemon
from sglang_qsa.demo.processes import ignore_progress
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import (
    anchor_tokens,
    lmcache_flags,
    prompt,
    wait_until_stored,
)

pytestmark = pytest.mark.server

LOSS = Path(__file__).parent / "loss"

LONG_TOKENS = 2900
"""Beyond the selection budget of 2,048 tokens: blocks are dropped."""

LOGPROB_TOLERANCE = 0.1
"""The server computes in bf16, the reference in fp32."""


@dataclass
class Setup:
    server: SGLangServer
    daemon: LMCacheDaemon
    loss: Path

    def send(self, tokens: list[int], max_new_tokens: int = 8) -> Generation:
        return generate(self.server.url, tokens, max_new_tokens=max_new_tokens)

    def restored(self, tokens: list[int]) -> Generation:
        """Answer `tokens` with an empty server that finds them in the daemon."""
        flush_cache(self.server.url)
        answer = self.send(tokens)
        assert answer.storage_tokens == anchor_tokens(len(tokens))
        return answer


@pytest.fixture(scope="module")
def setup(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("server")
    loss = folder / "loss"
    with LMCacheDaemon(folder) as daemon:
        daemon.wait_ready()
        server = SGLangServer(
            tiny_model,
            folder,
            flags=lmcache_flags(daemon),
            environment=PATIENT | {"PYTHONPATH": str(LOSS), "QSA_TEST_LOSS": str(loss)},
        )
        with server:
            server.wait_ready()
            yield Setup(server, daemon, loss)


@pytest.fixture(scope="module")
def device_hit(setup: Setup) -> Generation:
    """The yardstick: the long prompt, computed, stored, and sent again."""
    before = setup.daemon.stored_objects()
    setup.send(prompt(LONG_TOKENS))
    wait_until_stored(setup.daemon, before, ignore_progress)
    return setup.send(prompt(LONG_TOKENS))


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    """The same checkpoint in transformers, an implementation of its own."""
    from transformers import Qwen4ExpForConditionalGeneration

    return Qwen4ExpForConditionalGeneration.from_pretrained(
        tiny_model, dtype=torch.float32
    ).eval()


@pytest.mark.parametrize("tokens", [3, 300, 2600])
def test_answers_are_the_reference_s(setup: Setup, reference: Any, tokens: int) -> None:
    answer = setup.send(prompt(tokens))
    ids = torch.tensor([[*prompt(tokens), *answer.output_ids]])
    with torch.no_grad():
        logits = reference(input_ids=ids).logits[0, tokens - 1 : -1].float()
    logprobs = logits.log_softmax(-1)
    of_answer = logprobs.gather(-1, ids[0, tokens:, None])[:, 0]
    assert of_answer.tolist() == pytest.approx(answer.logprobs, abs=LOGPROB_TOLERANCE)
    # Greedy, but for a tie within the rounding.
    best = logprobs.max(-1).values
    assert of_answer.tolist() == pytest.approx(best.tolist(), abs=LOGPROB_TOLERANCE)


def test_tiers_are_told_apart(setup: Setup) -> None:
    tokens = prompt(500)
    before = setup.daemon.stored_objects()
    cold = setup.send(tokens)
    assert cold.recomputed_tokens == cold.prompt_tokens == 500
    hit = setup.send(tokens)
    assert (hit.device_tokens, hit.recomputed_tokens) == (448, 52)
    wait_until_stored(setup.daemon, before, ignore_progress)
    restored = setup.restored(tokens)
    assert (restored.storage_tokens, restored.recomputed_tokens) == (448, 52)
    assert (restored.output_ids, restored.logprobs) == (hit.output_ids, hit.logprobs)


def test_answers_repeat(setup: Setup) -> None:
    short = prompt(60)
    first = setup.send(short)
    flush_cache(setup.server.url)
    second = setup.send(short)
    assert first.recomputed_tokens == second.recomputed_tokens == 60
    assert (first.output_ids, first.logprobs) == (second.output_ids, second.logprobs)


def test_far_context_matters(setup: Setup, device_hit: Generation) -> None:
    changed = prompt(LONG_TOKENS)
    changed[10] = random.Random(1).choice(
        [t for t in range(3, 500) if t != changed[10]]
    )
    assert setup.send(changed).logprobs != device_hit.logprobs


def test_nothing_lost_equals_the_device_hit(
    setup: Setup, device_hit: Generation
) -> None:
    restored = setup.restored(prompt(LONG_TOKENS))
    assert restored.output_ids == device_hit.output_ids
    assert restored.logprobs == device_hit.logprobs


@pytest.mark.parametrize(
    "plane", ["k", "v", "index", "ssm", "conv", "ple_conv", "ple_ngram"]
)
def test_lost_plane_shows(setup: Setup, device_hit: Generation, plane: str) -> None:
    setup.loss.write_text(plane)
    restored = setup.restored(prompt(LONG_TOKENS))
    assert not setup.loss.exists()
    assert restored.logprobs != device_hit.logprobs
