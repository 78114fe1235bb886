"""The daemon hangs, dies or comes back empty, at each step of a request.

Wanted each time: right tokens, other requests held up by no more than the
time-out, and the tier in use again without anybody's help.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.server import SGLangServer

pytestmark = pytest.mark.server

TIMEOUT_S = 2.0
COMPUTE_S = 8.0
"""What a small request may take by itself on a slow machine with two cores."""
RECOVERY_S = 60.0
PROMPT_TOKENS = 200
STORED_TOKENS = 192
FAULTS = Path(__file__).parent / "faults"


@dataclass
class Setup:
    """One server and its daemon, and how to stop the daemon at a given step."""

    server: SGLangServer
    daemon: LMCacheDaemon
    armed: Path
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def prompt(self, tokens: int = PROMPT_TOKENS) -> list[int]:
        return [self.random.randrange(3, 490) for _ in range(tokens)]

    def arm(self, step: str, signum: signal.Signals) -> None:
        file = self.armed / step
        file.write_text(f"{int(signum)} {self.daemon.child.pid}")

    def was_fired(self, step: str) -> bool:
        return not (self.armed / step).exists()

    def gauge(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.server.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def wait(self, what: str, gauge: str, value: float) -> None:
        deadline = time.monotonic() + RECOVERY_S
        while self.gauge(gauge) != value:
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.5)

    def stored(self, prompt: list[int]) -> Generation:
        """Compute `prompt`, and return when it can be served from the daemon."""
        before = self.daemon.stored_objects()
        generate(self.server.url, prompt)
        reference = generate(self.server.url, prompt)
        deadline = time.monotonic() + RECOVERY_S
        while self.daemon.stored_objects() < before + 4:  # 3 pages and a state
            assert time.monotonic() < deadline, "the prompt was not stored"
            time.sleep(0.1)
        assert reference.device_tokens == STORED_TOKENS
        return reference


@pytest.fixture(scope="module")
def setup(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("faults")
    armed = folder / "armed"
    armed.mkdir()
    with LMCacheDaemon(folder) as daemon:
        daemon.wait_ready()
        server = SGLangServer(
            tiny_model,
            folder,
            flags=[
                *("--enable-lmcache", "--lmcache-config-file"),
                str(daemon.client_config),
                "--enable-metrics",
            ],
            environment={
                "PYTHONPATH": str(FAULTS),
                "QSA_TEST_FAULTS": str(armed),
                "SGLANG_QSA_ADMISSION_MIN_TOKENS": "0",
                "SGLANG_QSA_LOOKUP_TIMEOUT_S": str(TIMEOUT_S),
                "SGLANG_QSA_RETRIEVE_TIMEOUT_S": str(TIMEOUT_S),
            },
        )
        with server:
            server.wait_ready()
            yield Setup(server, daemon, armed)


@pytest.mark.parametrize("fault", ["frozen", "killed"])
@pytest.mark.parametrize("step", ["lookup", "retrieve", "store"])
def test_fault_at_each_step(setup: Setup, step: str, fault: str) -> None:
    known = setup.prompt()
    reference = setup.stored(known)
    flush_cache(setup.server.url)
    prompt = known if step == "retrieve" else setup.prompt()

    setup.arm(step, signal.SIGSTOP if fault == "frozen" else signal.SIGKILL)
    with _Bystander(setup) as bystander:
        answer = generate(setup.server.url, prompt)
    assert setup.was_fired(step)
    assert answer.storage_tokens == 0
    assert answer.seconds < TIMEOUT_S + COMPUTE_S
    assert bystander.slowest_s < TIMEOUT_S + COMPUTE_S
    if step == "retrieve":
        assert answer.output_ids == reference.output_ids
    setup.wait("the breaker opening", "sglang_qsa_tier_usable", 0)
    # While the daemon is gone nothing asks it for anything.
    assert generate(setup.server.url, setup.prompt()).seconds < COMPUTE_S
    if step == "retrieve" and fault == "frozen":
        assert setup.gauge("sglang_qsa_quarantined_loads") == 1

    if fault == "frozen":
        setup.daemon.thaw()
    else:
        setup.daemon.restart()
    setup.wait("recovery", "sglang_qsa_tier_usable", 1)
    setup.wait("release of held slots", "sglang_qsa_quarantined_loads", 0)

    again = setup.prompt()
    reference = setup.stored(again)
    flush_cache(setup.server.url)
    restored = generate(setup.server.url, again)
    assert restored.storage_tokens == STORED_TOKENS
    assert restored.output_ids == reference.output_ids
    assert restored.logprobs == reference.logprobs


class _Bystander:
    """Small requests sent all the while; the slowest shows how long others wait."""

    def __init__(self, setup: Setup) -> None:
        self.slowest_s = 0.0
        self._setup = setup
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            prompt = self._setup.prompt(20)
            answer = generate(self._setup.server.url, prompt, max_new_tokens=1)
            self.slowest_s = max(self.slowest_s, answer.seconds)
