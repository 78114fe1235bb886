"""What is sent: a function of the seed, with prefixes shared as declared."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.radix_cache.lengths import Lengths
from benchmarks.radix_cache.tokens import GRAIN_TOKENS, Tokens, reusable
from benchmarks.radix_cache.workloads import (
    AGENT,
    CHAT,
    LONG_QA,
    MIX,
    ONE_OFF,
    RAG,
    TRACE,
    WORKLOADS,
    Turn,
    fitting,
    from_trace,
    make,
    read_lengths,
)
from benchmarks.traces import Request, Segment
from sglang_qsa.errors import ConfigError


def turns(
    workload: str, *overrides: str, seed: int = 0, sessions: int = 12, live: int = 12
) -> list[Turn]:
    lengths = read_lengths(workload, overrides, 0.1)
    return make(lengths, seed=seed, sessions=sessions, open_sessions=live)


def sessions_of(found: list[Turn]) -> list[list[Request]]:
    numbers = sorted({turn.session for turn in found})
    return [[turn.request for turn in found if turn.session == n] for n in numbers]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_one_seed_is_one_workload(workload: str) -> None:
    assert turns(workload) == turns(workload)
    assert turns(workload) != turns(workload, seed=1)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_sessions_take_turns_with_each_other(workload: str) -> None:
    alone, together = (turns(workload, live=live) for live in (1, 12))
    changes = [
        sum(a.session != b.session for a, b in pairwise(found))
        for found in (alone, together)
    ]
    assert changes[0] == 11
    assert changes[1] > 2 * changes[0]


@pytest.mark.parametrize("workload", [CHAT, AGENT])
def test_a_next_turn_continues_prompt_and_answer(workload: str) -> None:
    for session in sessions_of(turns(workload)):
        for before, after in pairwise(session):
            sent = (*before.prompt, before.answer)
            assert after.prompt[: len(sent)] == sent
            assert len(after.prompt) > len(sent)


def test_chats_share_the_system_prompt_alone() -> None:
    first = [session[0].prompt for session in sessions_of(turns(CHAT))]
    assert len({prompt[0] for prompt in first}) == 1
    assert len({prompt[1] for prompt in first}) == len(first)


def test_agents_share_a_tools_prompt_each() -> None:
    found = sessions_of(turns(AGENT, "agents=2", sessions=20))
    assert len({session[0].prompt[0] for session in found}) == 2


def test_rag_prompts_are_passages_of_one_document_in_its_order() -> None:
    found = [turn.request.prompt for turn in turns(RAG, "passages=9", "retrieved=4")]
    places = [[int(s.id.split("/")[-1]) for s in prompt[1:-1]] for prompt in found]
    assert all(len(row) == 4 and row == sorted(set(row)) for row in places)
    assert len({place for row in places for place in row}) == 9
    assert len({prompt[0] for prompt in found}) == 1


def test_questions_of_a_session_share_its_document() -> None:
    for session in sessions_of(turns(LONG_QA)):
        assert len({request.prompt[1] for request in session}) == 1
        assert len({request.prompt[2] for request in session}) == len(session)


def test_the_mix_has_a_part_of_each() -> None:
    kinds = {turn.kind for turn in turns(MIX, sessions=10)}
    assert kinds == {CHAT, AGENT, RAG, LONG_QA, ONE_OFF}


def test_lengths_follow_the_options() -> None:
    found = turns(CHAT, "user=uniform:500:700", "answer=60", "turns=3")
    assert {len(session) for session in sessions_of(found)} == {3}
    assert {turn.request.answer.tokens for turn in found} == {6}
    users = [turn.request.prompt[-1].tokens for turn in found]
    assert min(users) >= 50
    assert max(users) <= 70
    assert len(set(users)) > 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0",
        "-3",
        "uniform:5",
        "uniform:9:3",
        "normal:1:2",
        "lognormal:9:1",
        "lognormal:9:-1:20",
        "uniform:0:4",
        "nan",
    ],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--set chat\.user: found"):
        read_lengths(CHAT, [f"user={text}"], 1)


def test_an_unknown_part_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"found 'usr=5'.*chat\.user"):
        read_lengths(CHAT, ["usr=5"], 1)


def test_lognormal_lengths_keep_median_and_limits() -> None:
    lengths, source = Lengths.parse("lognormal:150:0.8:400", "here"), random.Random(1)
    drawn = sorted(lengths.draw(source) for _ in range(2001))
    assert 135 < drawn[1000] < 165
    assert drawn[-1] == 400
    assert drawn[0] >= 1


def test_a_trace_file_keeps_its_shared_blocks(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [
        {"input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"input_length": 1080, "output_length": 9, "hash_ids": [1, 2, 4]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = from_trace(file, 0, 1)
    assert [turn.request.prompt_tokens for turn in (first, second)] == [1100, 1080]
    assert first.kind == TRACE
    tokens = Tokens(0, range(5, 492))
    one, two = (tokens.prompt(turn, {}) for turn in (first, second))
    assert one[:1024] == two[:1024]
    assert reusable([first, second]) == [0, 1024]
    assert from_trace(file, 0, 0.5)[1].request.prompt_tokens == 540


@pytest.mark.parametrize("text", ["{", '{"input_length": 5}', "[]"])
def test_a_broken_trace_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:1: no request"):
        from_trace(file, 0, 1)


def test_too_long_turns_are_left_out() -> None:
    found = turns(CHAT)
    longest = max(turn.tokens for turn in found)
    assert fitting(found, longest) == found
    assert max(turn.tokens for turn in fitting(found, longest - 1)) < longest


def test_tokens_are_those_of_seed_and_segment() -> None:
    segment, other = Segment("a", 300), Segment("b", 300)
    tokens = Tokens(7, range(5, 492))
    assert tokens.of(segment) == Tokens(7, range(5, 492)).of(segment)
    assert tokens.of(segment) != tokens.of(other)
    assert tokens.of(segment) != Tokens(8, range(5, 492)).of(segment)
    assert tokens.of(Segment("a", 200)) == tokens.of(segment)[:200]
    assert set(tokens.of(segment)) <= set(range(5, 492))


def test_an_answer_takes_its_place_in_the_history() -> None:
    prompt = (Segment("user", 3), Segment("answer", 2), Segment("more", 3))
    turn = Turn(CHAT, 0, Request(prompt, Segment("next", 2)))
    tokens = Tokens(0, range(5, 492))
    made_up = tokens.prompt(turn, {})
    assert tokens.prompt(turn, {"answer": [1, 2]}) == [*made_up[:3], 1, 2, *made_up[5:]]


def test_reusable_is_what_was_sent_or_answered_before_in_whole_pages() -> None:
    system, user, answer = Segment("s", 100), Segment("u", 50), Segment("a", 106)
    first = Request((system, user), answer)
    turns = [
        Turn(CHAT, 0, request)
        for request in (
            first,
            first,
            Request((system, Segment("v", 50)), Segment("b", 9)),
            Request((system, user, answer, Segment("w", 64)), Segment("c", 9)),
        )
    ]
    # The resend ends in its third page, and its last token is computed anyway; the
    # history of the last one is 256 tokens, of which the answer's last has no state.
    assert reusable(turns) == [0, 128, 64, 192]
    shorter = [turns[0], Turn(CHAT, 0, Request((system, Segment("u", 28)), answer))]
    assert reusable(shorter)[1] == 128 - GRAIN_TOKENS
