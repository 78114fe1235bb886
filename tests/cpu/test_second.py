"""A prompt that resumes where two others parted: one forward less, the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt
from sglang_qsa.hooks.second import Part
from sglang_qsa.preflight import BACKEND_NAME

PARTS = Path(__file__).parent / "parts"
FORK, TAIL = 640, 3
LOGPROB_TOLERANCE = 1e-3
"""A prompt computed at once against the same one resumed: other shapes."""

pytestmark = pytest.mark.server


@dataclass(frozen=True, slots=True)
class Setup:
    server: SGLangServer
    left_out: Path

    def resumed(self, seed: int, part: Part | None = None) -> tuple[Generation, int]:
        """The third prompt over one beginning, and the forwards of the second."""
        flush_cache(self.server.url)
        first = prompt(1500 + seed)
        generate(self.server.url, first, max_new_tokens=1)
        if part is not None:
            self.left_out.write_text(part.name)
        before = self.forwards()
        forked = first[:FORK] + prompt(900 + seed)
        found = generate(self.server.url, forked, max_new_tokens=1).device_tokens
        assert found == 0
        forwards = self.forwards() - before
        self.left_out.unlink(missing_ok=True)
        return self.third(seed), forwards

    def third(self, seed: int) -> Generation:
        tokens = prompt(1500 + seed)[:FORK] + prompt(TAIL)
        return generate(self.server.url, tokens, max_new_tokens=8)

    def forwards(self) -> int:
        log = (self.server.log_path or Path()).read_text(errors="replace")
        return log.count("Prefill batch")


@pytest.fixture(scope="module")
def setup(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("second")
    left_out = folder / "part"
    server = SGLangServer(
        tiny_model,
        folder,
        flags=["--radix-cache-backend", BACKEND_NAME],
        environment={"PYTHONPATH": str(PARTS), "QSA_TEST_PART": str(left_out)},
    )
    with server:
        server.wait_ready()
        yield Setup(server, left_out)


def difference(setup: Setup, resumed: Generation, seed: int) -> float:
    """Largest of a log-probability to the same prompt computed at once."""
    flush_cache(setup.server.url)
    cold = setup.third(seed)
    assert (cold.device_tokens, resumed.device_tokens) == (0, FORK)
    pairs = zip(cold.logprobs, resumed.logprobs, strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_second_state_is_that_of_its_depth(setup: Setup, seed: int) -> None:
    resumed, forwards = setup.resumed(seed)
    assert forwards == 1
    assert difference(setup, resumed, seed) < LOGPROB_TOLERANCE


@pytest.mark.parametrize("part", list(Part))
def test_each_part_of_it_counts(setup: Setup, part: Part) -> None:
    resumed, _ = setup.resumed(1, part)
    assert difference(setup, resumed, 1) > 5 * LOGPROB_TOLERANCE
