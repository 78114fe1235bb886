"""What a tier asks the admission rule about SGLang's requests, and what it counts."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa.tiers import admission
from sglang_qsa.tiers.admission import TierAdmission

CHUNK = 256


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    verdicts: list[str] = []

    def count(name: str, *, store: str, verdict: str) -> None:
        assert (name, store) == ("sglang_qsa_admissions_total", "disk")
        verdicts.append(verdict)

    monkeypatch.setattr(admission, "count", count)
    return verdicts


def request(rid: str, tokens: int, **facts: Any) -> Any:
    defaults = {"extra_key": None, "cache_salt": None, "mamba_branching_seqlen": None}
    ids = array("q", range(tokens))
    return SimpleNamespace(rid=rid, full_untruncated_fill_ids=ids, **(defaults | facts))


def keeps(tier: TierAdmission, req: Any, computed: int | None = None) -> bool:
    return tier.keeps(req, req.full_untruncated_fill_ids[:computed], CHUNK)


@pytest.fixture
def tier() -> TierAdmission:
    return TierAdmission("disk", 1024)


def test_short_prompt_once_it_is_seen_again(
    tier: TierAdmission, counted: list[str]
) -> None:
    assert not keeps(tier, request("a", 700))
    assert not keeps(tier, request("a", 720)), "the same request, at its end"
    assert keeps(tier, request("b", 700))
    assert counted == ["short", "short", "seen_again"]


def test_other_tokens_are_another_prompt(tier: TierAdmission) -> None:
    assert not keeps(tier, request("a", 700))
    other = request("b", 700)
    other.full_untruncated_fill_ids[3] = 99_999
    assert not keeps(tier, other)


@pytest.mark.parametrize("name", ["extra_key", "cache_salt"])
def test_namespaces_are_apart(tier: TierAdmission, name: str) -> None:
    assert not keeps(tier, request("a", 700))
    assert not keeps(tier, request("b", 700, **{name: "tenant"}))
    assert keeps(tier, request("c", 700, **{name: "tenant"}))


def test_first_chunk_of_a_long_prompt(tier: TierAdmission, counted: list[str]) -> None:
    """The request is long, whatever of it is computed."""
    assert keeps(tier, request("a", 5000), computed=512)
    assert counted == ["long"]


def test_fork(tier: TierAdmission, counted: list[str]) -> None:
    """Two prompts have shared these tokens already, and one was cut there."""
    forked = request("a", 900, mamba_branching_seqlen=512)
    assert keeps(tier, forked, computed=512)
    assert not keeps(tier, forked)
    assert counted == ["fork", "short"]


def test_less_than_a_chunk_is_not_offered(
    tier: TierAdmission, counted: list[str]
) -> None:
    assert not keeps(tier, request("a", 255))
    assert counted == []


def test_memory_does_not_grow_with_the_prompts(tier: TierAdmission) -> None:
    """A digest is remembered, not the tokens."""
    for at in range(100):
        req = request(f"r{at}", 1000)
        req.full_untruncated_fill_ids[0] = at
        keeps(tier, req)
    sizes = [len(key[0]) for key in tier._rule._first_sender]  # type: ignore[index]
    assert sizes == [16] * 100
