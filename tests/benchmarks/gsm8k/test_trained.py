"""With a model that can be wrong: right from a healthy tier, wrong from a broken one.

`make trained` trains it (benchmarks/trained_model) and runs this. What is compared is
answers, as with a model that people use; test_mutations.py compares the last bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.gsm8k.test_mutations import Setup, breakable

pytest.importorskip("sgl_eval", reason="needs requirements/bench.txt")

from benchmarks.gsm8k.__main__ import main

MODEL = os.environ.get("QSA_TEST_TRAINED_MODEL", "")
DEVICE = os.environ.get("QSA_TEST_TRAINED_DEVICE", "cpu")
QUESTIONS = 60
FLIP_ANSWERS = ("index", "k", "state", "ple")

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL, reason="make trained"),
]


def run(url: str, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(
        [
            *("--url", url, "--data", str(Path(MODEL) / "problems.jsonl")),
            *("--questions", str(QUESTIONS), "--shots", "0", "--max-tokens", "100"),
            *("--concurrency", "1", "--settle-s", "3", "--min-accuracy", "0.9"),
            *("--out", str(out), *options),
        ]
    )
    return code, json.loads((out / "gsm8k.json").read_text())


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("trained")
    with breakable(Path(MODEL), folder, DEVICE) as setup:
        yield setup


def test_the_healthy_tier_answers_as_the_device_does(setup: Setup) -> None:
    code, result = run(setup.server.url, setup.folder / "healthy")
    assert (code, result["failures"]) == (0, [])
    assert result["served"] == {"questions": QUESTIONS, "of": QUESTIONS}
    assert result["flips"]["tier"]["lost"] == 0


@pytest.mark.parametrize("name", FLIP_ANSWERS)
def test_a_broken_tier_costs_answers(setup: Setup, name: str) -> None:
    setup.mutation.write_text(name)
    try:
        code, result = run(setup.server.url, setup.folder / name, *setup.reference)
    finally:
        setup.mutation.unlink()
    assert code == 1
    assert result["served"] == {"questions": QUESTIONS, "of": QUESTIONS}
    assert any("answers flip" in line for line in result["failures"])
