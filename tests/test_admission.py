"""What a tier keeps: long prompts, prompts seen again, forks, the end of each path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_qsa.admission import Admission, Anchor, Verdict
from sglang_qsa.errors import ConfigError
from tests.messages import assert_refusal

LONG, SEEN_AGAIN, FORK = Verdict.LONG, Verdict.SEEN_AGAIN, Verdict.FORK
SHORT, CROWDED = Verdict.SHORT, Verdict.CROWDED


def offer(rule: Admission, key: str, request: str, tokens: int = 500) -> Verdict:
    return rule.admit(key, tokens=tokens, request=request)


def test_what_is_kept() -> None:
    assert {verdict for verdict in Verdict if verdict.kept} == {LONG, SEEN_AGAIN, FORK}


# -- short prompts ---------------------------------------------------------------


def test_short_prompt_is_kept_once_another_request_sends_it() -> None:
    rule = Admission()
    assert offer(rule, "a", "r1") is SHORT
    assert offer(rule, "b", "r2") is SHORT
    assert offer(rule, "a", "r3") is SEEN_AGAIN


def test_a_request_that_asks_twice_is_not_a_prompt_seen_again() -> None:
    """After prefill and at its end."""
    rule = Admission()
    assert [offer(rule, "a", "r1") for _ in range(3)] == [SHORT] * 3


def test_what_was_seen_again_stays_so_for_everyone() -> None:
    rule = Admission()
    offer(rule, "a", "r1")
    offer(rule, "a", "r2")
    assert [offer(rule, "a", r) for r in ("r1", "r2", "r3")] == [SEEN_AGAIN] * 3


@pytest.mark.parametrize(("tokens", "verdict"), [(1023, SHORT), (1024, LONG)])
def test_minimum_of_1024_tokens(tokens: int, verdict: Verdict) -> None:
    assert offer(Admission(), "a", "r1", tokens) is verdict


def test_minimum_of_zero_keeps_all() -> None:
    assert offer(Admission(min_tokens=0), "a", "r1", tokens=1) is LONG


def test_fork_is_kept_at_any_length() -> None:
    rule = Admission()
    assert rule.admit("a", tokens=64, request="r1", fork=True) is FORK
    assert offer(rule, "a", "r2") is SHORT, "a fork is no sender"


# -- bounded memory --------------------------------------------------------------


def test_the_prompt_not_asked_for_longest_is_forgotten() -> None:
    rule = Admission(remembered_prompts=2)
    for key in ("a", "b", "c"):
        offer(rule, key, "r1")
    assert offer(rule, "c", "r2") is SEEN_AGAIN
    assert offer(rule, "b", "r2") is SEEN_AGAIN
    assert offer(rule, "a", "r2") is SHORT


def test_asking_keeps_a_prompt_in_mind() -> None:
    rule = Admission(remembered_prompts=2)
    for key in ("a", "b", "a", "c"):
        offer(rule, key, "r1")
    assert offer(rule, "a", "r2") is SEEN_AGAIN
    assert offer(rule, "b", "r2") is SHORT


def test_kept_prompts_take_no_memory() -> None:
    rule = Admission(remembered_prompts=1)
    offer(rule, "a", "r1")
    for number in range(10):
        offer(rule, f"long {number}", "r1", tokens=2000)
        rule.admit(f"fork {number}", tokens=100, request="r1", fork=True)
    assert offer(rule, "a", "r2") is SEEN_AGAIN


offers = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from((1, 500, 1023, 1024, 9000)),
        st.sampled_from(("r1", "r2", "r3")),
        st.booleans(),
    ),
    max_size=60,
)


def verdicts(rule: Admission, given_offers: list[Any]) -> list[Verdict]:
    return [
        rule.admit(key, tokens=tokens, request=request, fork=fork)
        for key, tokens, request, fork in given_offers
    ]


@given(offers)
def test_verdicts_are_as_the_rule_says(given_offers: list[Any]) -> None:
    """Against the rule written down with endless memory."""
    senders: dict[str, set[str]] = {}
    rule = Admission()
    for key, tokens, request, fork in given_offers:
        verdict = rule.admit(key, tokens=tokens, request=request, fork=fork)
        if fork or tokens >= 1024:
            assert verdict is (FORK if fork else LONG)
            continue
        senders.setdefault(key, set()).add(request)
        assert verdict is (SEEN_AGAIN if len(senders[key]) > 1 else SHORT)


@given(offers, st.integers(1, 4))
def test_little_memory_forgets_and_never_makes_up(
    given_offers: list[Any], remembered: int
) -> None:
    little = verdicts(Admission(remembered_prompts=remembered), given_offers)
    endless = verdicts(Admission(), given_offers)
    for one, other in zip(little, endless, strict=True):
        assert one is other or (one, other) == (SHORT, SEEN_AGAIN)


@given(offers, st.integers(1, 4))
def test_ranks_decide_alike(given_offers: list[Any], remembered: int) -> None:
    ranks = [Admission(remembered_prompts=remembered) for _ in range(2)]
    assert verdicts(ranks[0], given_offers) == verdicts(ranks[1], given_offers)


@given(offers)
def test_every_verdict_is_counted(given_offers: list[Any]) -> None:
    rule = Admission()
    answers = verdicts(rule, given_offers)
    assert {v: n for v, n in rule.verdicts.items() if n} == {
        verdict: answers.count(verdict) for verdict in set(answers)
    }


# -- paths -----------------------------------------------------------------------


def path(text: str) -> list[Anchor]:
    """Anchors from the root down; capitals are forks."""
    return [Anchor(key, fork=key.isupper()) for key in text]


@pytest.mark.parametrize(
    ("held", "dropped"),
    [
        ("", ""),
        ("a", ""),
        ("abcd", ""),
        ("abcde", "a"),
        ("abcdef", "ab"),
        ("Abcde", "b"),
        ("aBCde", "a"),
        ("ABCDe", ""),
        ("ABCDEf", ""),
        ("ABCdEf", "d"),
    ],
)
def test_a_path_keeps_its_forks_and_deepest_anchors(held: str, dropped: str) -> None:
    rule = Admission(anchors_per_path=4)
    assert [anchor.key for anchor in rule.crowded(path(held))] == list(dropped)
    assert rule.verdicts[CROWDED] == len(dropped)


def test_any_number_of_anchors() -> None:
    assert Admission(anchors_per_path=0).crowded(path("abcdefghij")) == ()


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 6))
def test_what_stays_on_a_path(forks: list[bool], number: int) -> None:
    held = [Anchor(depth, fork) for depth, fork in enumerate(forks)]
    rule = Admission(anchors_per_path=number)
    dropped = rule.crowded(held)
    kept = [anchor for anchor in held if anchor not in dropped]
    assert len(kept) <= number or all(anchor.fork for anchor in kept[:-1])
    assert len(kept) >= min(number, len(held))
    assert not any(anchor.fork for anchor in dropped)
    assert held[-1:] == kept[-1:]
    plain = [anchor for anchor in held if not anchor.fork]
    assert list(dropped) == plain[: len(dropped)], "shallowest first"
    assert rule.crowded(kept) == (), "once is enough"


# -- options ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_tokens", -1), ("anchors_per_path", -1), ("remembered_prompts", 0)],
)
def test_impossible_numbers_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Admission(**{name: value})
    assert_refusal(caught.value, origin=name, found=str(value))
