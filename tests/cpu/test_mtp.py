"""Speculative decoding with the model's MTP layer (NEXTN), and its rows in the tiers.

A target corrects whatever its draft layer proposes: lost draft rows need not change a
token. They change how many drafts are accepted, and a device hit is compared by that
too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.restart import DRAFTS, NEXTN
from benchmarks.restart_tiers import DiskTier
from sglang_qsa.boundary import anchor
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.processes import ignore_progress
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import prompt

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGE = 64
SHORT, MIDDLE, LONG = (100, 1000), 2500, 2900
"""Above 2,048 tokens blocks are dropped, and index keys decide which."""
LENGTHS = (*SHORT, MIDDLE, LONG)
EQUAL = (*SHORT, MIDDLE)
"""At `LONG`, one value is rounded otherwise from the 22nd token on, and selects so."""
STORED = (1000, LONG)
"""Long enough for HiCache to ask storage for them."""
ANSWER_TOKENS = 48
LONG_ANSWER = 89
"""Behind `MIDDLE` and `SHORT`, with a boundary inside."""
LOGPROB_TOLERANCE = 1e-3
"""Several rows in one product of bf16 may round unlike one row."""
FILLER_TOKENS = 3000
DEVICE_TOKENS = 6144
"""Room for a long prompt and a short one, so that a filler drives one out."""


@dataclass
class Serving:
    server: SGLangServer
    store: Path
    lost: Path
    answers: dict[int, Generation] = field(default_factory=dict)
    hits: dict[int, Generation] = field(default_factory=dict)

    def send(
        self, tokens: Sequence[int], answer_tokens: int = ANSWER_TOKENS
    ) -> Generation:
        return generate(self.server.url, tokens, max_new_tokens=answer_tokens)

    def empty(self) -> None:
        """Flush; the step that overlaps the end of an answer may still be running."""
        for _ in range(50):
            try:
                return flush_cache(self.server.url)
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server is never idle")

    def layout_id(self) -> str:
        named = re.findall(r"sglang_qsa \S+: layout (qsa\S+),", self.server.log)
        return str(named[-1])


def serving(model: Path, folder: Path, store: Path, *flags: str) -> Serving:
    """A server with the record store, whose draft rows a test can lose."""
    lost = folder / "lost"
    tier = DiskTier(store, linked=False, host_gb=1)
    server = SGLangServer(
        model,
        folder,
        flags=[*tier.flags(), "--max-total-tokens", str(DEVICE_TOKENS), *flags],
        environment={
            "PYTHONPATH": str(Path(__file__).parent / "drafts"),
            "QSA_TEST_LOST_PLANES": str(lost),
        },
    )
    return Serving(server, store, lost)


def fill(serving: Serving) -> None:
    """Send every prompt twice, the second time to find it, until all is stored."""
    tier = DiskTier(serving.store, linked=False, host_gb=1)
    tier.mark()
    for length in LENGTHS:
        serving.answers[length] = serving.send(prompt(length))
        serving.hits[length] = serving.send(prompt(length))
    tier.wait_until_stored(ignore_progress)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the servers with drafts and without."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def plain(
    tiny_model_with_drafts: Path, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Serving:
    """The answers of a server that drafts nothing, and its records."""
    plain = serving(tiny_model_with_drafts, tmp_path_factory.mktemp("plain"), store)
    with plain.server:
        plain.server.wait_ready()
        fill(plain)
    return plain


@pytest.fixture(scope="module")
def drafting(
    tiny_model_with_drafts: Path,
    store: Path,
    plain: Serving,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("drafting")
    drafting = serving(tiny_model_with_drafts, folder, store, *NEXTN)
    with drafting.server:
        drafting.server.wait_ready()
        fill(drafting)
        yield drafting


def assert_as_device_hit(found: Generation, hit: Generation) -> None:
    assert hit.device_tokens == anchor(hit.prompt_tokens, PAGE)
    assert found.output_ids == hit.output_ids
    assert found.logprobs == hit.logprobs
    assert found.accepted_drafts == hit.accepted_drafts


def is_as_without_drafts(drafted: Generation, plain: Generation) -> bool:
    logprobs = pytest.approx(plain.logprobs, abs=LOGPROB_TOLERANCE)
    return drafted.output_ids == plain.output_ids and drafted.logprobs == logprobs


@pytest.mark.parametrize("length", EQUAL)
def test_answers_are_those_without_drafts(
    plain: Serving, drafting: Serving, length: int
) -> None:
    assert plain.answers[length].accepted_drafts == ()
    for answer in (drafting.answers[length], drafting.hits[length]):
        assert is_as_without_drafts(answer, plain.answers[length])


def test_tokens_are_those_without_drafts(plain: Serving, drafting: Serving) -> None:
    wanted = plain.answers[LONG].output_ids
    assert drafting.answers[LONG].output_ids == wanted
    assert drafting.hits[LONG].output_ids == wanted


def test_the_rings_of_a_server_with_drafts_are_larger(
    plain: Serving, drafting: Serving
) -> None:
    told = "2 groups of raw index keys"
    assert told in drafting.server.log
    assert told not in plain.server.log


def test_drafts_are_counted(drafting: Serving) -> None:
    for answer in drafting.answers.values():
        steps = sum(answer.accepted_drafts)
        accepted = sum(n * of for n, of in enumerate(answer.accepted_drafts))
        assert 0 < accepted < steps * DRAFTS
        # Each step gives a token besides, and so does the prompt; the last step may
        # give more than were asked for.
        assert 0 <= 1 + steps + accepted - ANSWER_TOKENS <= DRAFTS


@pytest.mark.skipif(
    "QSA_TEST_RESTARTS" not in os.environ,
    reason="one more start; part of make campaign",
)
def test_upstream_mixes_index_keys_with_rejected_drafts(
    tiny_model_with_drafts: Path, plain: Serving, tmp_path: Path
) -> None:
    """Beyond 2,048 tokens stock SGLang 0.5.23 answers otherwise, and keeps other keys.

    When this fails, upstream is repaired and `hooks.ring` can go.
    """
    flags = [*NEXTN, "--max-total-tokens", str(DEVICE_TOKENS)]
    flags += ["--mamba-track-interval", str(PAGE)]
    server = SGLangServer(
        tiny_model_with_drafts, tmp_path, flags=flags, with_plugin=False
    )
    stock = Serving(server, tmp_path, tmp_path)
    with stock.server:
        stock.server.wait_ready()
        for length in EQUAL:
            answer = stock.send(prompt(length))
            same = is_as_without_drafts(answer, plain.answers[length])
            assert same == (length in SHORT)
        resumed, computed = next_turn(stock, MIDDLE, LONG_ANSWER)
        assert resumed.logprobs != pytest.approx(
            computed.logprobs, abs=LOGPROB_TOLERANCE
        )


def test_records_without_draft_rows_are_not_served(
    plain: Serving, drafting: Serving
) -> None:
    ours, theirs = drafting.layout_id(), plain.layout_id()
    assert ours != theirs
    for length in LENGTHS:
        assert drafting.answers[length].recomputed_tokens == length
    names = [directory.name for directory in drafting.store.iterdir()]
    assert all(any(layout in name for name in names) for layout in (ours, theirs))


def test_prompts_come_back_from_host_memory(drafting: Serving) -> None:
    for round_, length in enumerate(STORED):
        drafting.send(prompt(FILLER_TOKENS + round_))
        found = drafting.send(prompt(length))
        assert found.host_tokens == anchor(length, PAGE)
        assert_as_device_hit(found, drafting.hits[length])


def next_turn(
    serving: Serving, length: int, answer_tokens: int
) -> tuple[Generation, Generation]:
    """The next turn, resumed behind the answer, and behind a prefill of the answer."""
    serving.empty()
    first = prompt(length)
    answer = serving.send(first, answer_tokens)
    turn = [*first, *answer.output_ids, *prompt(40)]
    resumed = serving.send(turn, 8)
    # The last token of an answer has been through the model if it was a draft.
    end = len(first) + answer_tokens
    assert resumed.device_tokens in {anchor(end, PAGE), anchor(end + 1, PAGE)}
    serving.empty()
    # Found in storage only up to where the answer began, if at all.
    computed = serving.send([*turn[:-1], turn[-1] + 1], 8)
    assert computed.logprobs != resumed.logprobs
    return resumed, serving.send(turn, 8)


@pytest.mark.parametrize(
    ("length", "answer_tokens"),
    [*((1000, n) for n in (8, 64, 88, LONG_ANSWER)), (MIDDLE, LONG_ANSWER)],
)
def test_the_next_turn_resumes_behind_accepted_drafts(
    drafting: Serving, length: int, answer_tokens: int
) -> None:
    """At the last boundary of the answer, with the state of a prefill, and beyond 2,048
    tokens with its index keys."""
    resumed, computed = next_turn(drafting, length, answer_tokens)
    assert computed.output_ids == resumed.output_ids
    assert computed.logprobs == resumed.logprobs


def test_prompts_come_back_from_disk_after_a_restart(drafting: Serving) -> None:
    drafting.server.kill9()
    drafting.server.start()
    drafting.server.wait_ready()
    for length in STORED:
        found = drafting.send(prompt(length))
        assert found.storage_tokens == anchor(length, PAGE)
        assert_as_device_hit(found, drafting.hits[length])


@pytest.mark.parametrize("plane", ["draft_k", "draft_v", "draft_index"])
def test_lost_draft_rows_show(drafting: Serving, plane: str) -> None:
    """In the drafts that are accepted: the comparison above can fail."""
    drafting.empty()
    drafting.lost.write_text(plane)
    try:
        found = drafting.send(prompt(LONG))
    finally:
        drafting.lost.unlink()
    assert found.storage_tokens == anchor(LONG, PAGE)
    assert found.accepted_drafts != drafting.hits[LONG].accepted_drafts
