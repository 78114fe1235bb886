"""The evaluation must see each loss, and none where there is none.

A real server and a real record store; one start serves all mutations. The store's
look-ups and counters stay healthy throughout: in every run pass 2 is served by the
tier, to the last token.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.restart_tiers import open_tier
from sglang_qsa.demo.processes import ignore_progress
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.preflight import BACKEND_NAME
from tests.benchmarks.gsm8k.mutations.break_tier import DROPS, MUTATIONS

pytest.importorskip("sgl_eval", reason="needs requirements/bench.txt")

from benchmarks.gsm8k.__main__ import main

SHOTS = 6
"""Prompts of some 2,900 tokens: beyond the tiny model's selection budget of 2,048."""

SMALL = ("index", "ple", "shift", "swap")
EVERY = os.environ.get("QSA_TEST_EVERY_MUTATION") == "1"
"""Also the other mutations, other tiers after kill -9, and requests at a time."""
QUESTIONS = 3 if EVERY else 2

MUTATED = Path(__file__).parent / "mutations"


@dataclass(frozen=True)
class Setup:
    """A server whose tier can be broken, and pass 1 of a run on it."""

    server: SGLangServer
    folder: Path
    mutation: Path

    def run(self, name: str, *options: str) -> tuple[int, dict[str, Any]]:
        return run(self.server.url, self.folder / name, *options)

    @property
    def reference(self) -> tuple[str, str]:
        return ("--reference", str(self.folder / "healthy" / "gsm8k.json"))


def run(url: str, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(
        [
            *("--url", url, "--data", "generated", "--questions", str(QUESTIONS)),
            *("--shots", str(SHOTS), "--max-tokens", "24", "--settle-s", "3"),
            *("--compare", "tokens", "--concurrency", "1", "--out", str(out)),
            *options,
        ]
    )
    return code, json.loads((out / "gsm8k.json").read_text())


@contextmanager
def breakable(model: Path, folder: Path, device: str = "cpu") -> Iterator[Setup]:
    """A server with the record store, which breaks what `Setup.mutation` names."""
    mutation = folder / "mutation"
    environment = {"PYTHONPATH": str(MUTATED), "QSA_TEST_MUTATION": str(mutation)}
    with (
        open_tier(
            "disk", folder, chunk_tokens=64, gigabytes=1, progress=ignore_progress
        ) as tier,
        SGLangServer(
            model, folder, device=device, flags=tier.flags(), environment=environment
        ) as server,
    ):
        server.wait_ready()
        yield Setup(server, folder, mutation)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("mutations")
    with breakable(cached_checkpoint(), folder) as setup:
        code, result = setup.run("healthy")
        assert (code, result["failures"]) == (0, [])
        assert_served(result)
        yield setup


def assert_served(result: dict[str, Any]) -> None:
    summary = result["summary"]
    assert result["served"] == {"questions": QUESTIONS, "of": QUESTIONS}
    assert summary["tier"]["tier_tokens"] == summary["device"]["device_tokens"]


def test_every_plane_is_lost_by_some_mutation() -> None:
    """A new plane, scales among them, needs its mutation."""
    model = cached_checkpoint()
    layout = build(read_model_config(model), ServerFacts(), origin=str(model))
    lost = {plane for planes in DROPS.values() for plane in planes}
    assert {plane.name for plane in layout.planes} == lost


@pytest.mark.server
@pytest.mark.parametrize("name", MUTATIONS if EVERY else SMALL)
def test_a_broken_tier_is_reported(setup: Setup, name: str) -> None:
    setup.mutation.write_text(name)
    try:
        code, result = setup.run(name, *setup.reference)
    finally:
        setup.mutation.unlink()
    assert_served(result)
    assert code == 1
    assert any("log-probabilities differ" in line for line in result["failures"])
    assert result["different"]["logprobs"]["device again"] == []


@pytest.mark.server
def test_the_healthy_tier_shows_no_loss(setup: Setup) -> None:
    """After all mutations, from the same records."""
    code, result = setup.run("again", *setup.reference)
    assert_served(result)
    assert (code, result["failures"]) == (0, [])
    assert result["different"]["logprobs"]["tier"] == []


@pytest.mark.server
@pytest.mark.skipif(not EVERY, reason="make campaign")
@pytest.mark.parametrize("threads", [8, 16])
def test_requests_at_a_time(setup: Setup, threads: int) -> None:
    """Batches round differently from run to run; the second device pass says how."""
    options = ("--shots", "5", "--questions", "16", "--group", "4")
    code, result = setup.run(
        f"{threads}", *options, "--seed", f"{threads}", "--concurrency", f"{threads}"
    )
    assert result["served"] == {"questions": 16, "of": 16}
    assert (code, result["failures"]) == (0, [])


@pytest.mark.server
@pytest.mark.skipif(not EVERY, reason="make campaign")
@pytest.mark.parametrize(("api", "seed"), [("completion", 1), ("native", 2)])
def test_other_interfaces(setup: Setup, api: str, seed: int) -> None:
    options = ("--api", api, "--seed", str(seed), "--questions", "1")
    code, result = setup.run(api, *options)
    assert (code, result["failures"]) == (0, [])
    (answer,) = result["answers"]["tier"]
    assert len(answer["report"]["token_ids"]) == len(answer["report"]["logprobs"]) > 0


@pytest.mark.server
def test_a_killed_server_ends_the_run(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one with this server."""
    killer = threading.Timer(3, setup.server.child.kill)
    killer.start()
    code, result = setup.run("killed", "--seed", "3", "--questions", "16")
    killer.join()
    assert code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"benchmarks.gsm8k: {setup.server.url}: found no answer")
    assert result["interrupted"]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.skipif(not EVERY, reason="make campaign")
@pytest.mark.parametrize("name", ["lmcache", "disk", "linker"])
def test_a_restart_between(tmp_path: Path, name: str) -> None:
    """The server is killed and started by the command, as a user's would."""
    with (
        open_tier(
            name, tmp_path, chunk_tokens=64, gigabytes=1, progress=ignore_progress
        ) as tier,
        SGLangServer(cached_checkpoint(), tmp_path, flags=tier.flags()) as server,
    ):
        server.wait_ready()
        asked, done = tmp_path / "asked", tmp_path / "done"
        helper = threading.Thread(target=restart_when_asked, args=(server, asked, done))
        helper.start()
        command = f"touch {asked}; while [ ! -e {done} ]; do sleep 0.1; done"
        code, result = run(
            server.url, tmp_path / "result", "--restart-command", command
        )
        helper.join()
        assert_served(result)
        assert (code, result["failures"]) == (0, [])


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.skipif(not EVERY, reason="make campaign")
def test_host_memory_after_an_eviction(tmp_path: Path) -> None:
    """Host memory alone, which a flush would empty too."""
    flags = [
        *("--radix-cache-backend", BACKEND_NAME, "--enable-hierarchical-cache"),
        *("--hicache-ratio", "4", "--hicache-io-backend", "direct"),
        *("--hicache-mem-layout", "page_first_direct", "--max-total-tokens", "8192"),
    ]
    with SGLangServer(cached_checkpoint(), tmp_path, flags=flags) as server:
        server.wait_ready()
        options = ("--between", "evict", "--group", "1")
        code, result = run(server.url, tmp_path / "result", *options)
        assert_served(result)
        assert (code, result["failures"]) == (0, [])


def restart_when_asked(server: SGLangServer, asked: Path, done: Path) -> None:
    pause = threading.Event()
    while not asked.exists():
        pause.wait(0.1)
    server.kill9()
    server.start()
    done.touch()
