"""The command against servers that are fake in all but the protocol."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.radix_cache.command import TIER_UNUSED
from tests.benchmarks.radix_cache.fake_server import FakeServer
from tests.benchmarks.radix_cache.runs import REQUESTS, result, run, summary

pytestmark = pytest.mark.usefixtures("no_plots")


def test_reuse_is_what_the_server_says(tmp_path: Path) -> None:
    with FakeServer() as server:
        assert run(tmp_path, server) == 0
    found = summary(tmp_path)
    assert found["requests"] == REQUESTS == len(server.prompts)
    assert found["tokens_by_source"]["device"] == found["cached_tokens"] > 0
    # Two clients may compute the same system prompt at the same time.
    assert 0.8 < found["cached_of_reusable"] <= 1
    assert found["requests_beyond_reusable"] == 0
    assert found["inter_token_s"]["count"] == REQUESTS * 11
    assert found["counters"]["sglang:evicted_tokens_total"] == found["cached_tokens"]
    assert found["counters"]["sglang:load_back_bytes_total"] is None
    assert not result(tmp_path)["partial"]


def test_one_client_at_a_time_finds_all_that_was_sent(tmp_path: Path) -> None:
    with FakeServer() as server:
        assert run(tmp_path, server, arguments=("--clients", "1")) == 0
    assert server.most_at_once == 1
    assert summary(tmp_path)["cached_of_reusable"] == 1


def test_clients_send_at_the_same_time(tmp_path: Path) -> None:
    with FakeServer() as server:
        assert run(tmp_path, server) == 0
    assert server.most_at_once == 3


def test_a_next_turn_waits_for_its_answer(tmp_path: Path) -> None:
    prompts = []
    for clients in ("1", "18"):
        with FakeServer(token_s=0.002) as server:
            arguments = ("--clients", clients, "--round", "18")
            assert run(tmp_path, server, arguments=arguments) == 0
        prompts.append(sorted(server.prompts))
    assert prompts[0] == prompts[1]


def test_times_are_those_of_the_server(tmp_path: Path) -> None:
    times = {"prefill_s": 0.2, "token_s": 0.06, "tokens_per_event": 3}
    with FakeServer(**times) as server:  # type: ignore[arg-type]
        assert run(tmp_path, server, arguments=("--clients", "18")) == 0
    found = summary(tmp_path)
    assert 0.19 < found["ttft_s"]["p50"] < 1
    assert 0.018 < found["inter_token_s"]["p50"] < 0.05
    assert found["inter_token_s"]["count"] == REQUESTS * 9
    assert found["longest_gap_s"] > 0.05
    starts = [s["started_s"] for s in result(tmp_path)["servers"][0]["samples"]]
    assert 0 <= min(starts) < 2
    assert 0.6 < max(starts) < found["seconds"]
    rate = found["answer_tokens"] / found["seconds"]
    assert found["answer_tokens_per_s"] == pytest.approx(rate, rel=0.01)


def test_incremental_streams_are_put_together(tmp_path: Path) -> None:
    found = []
    for incremental in (False, True):
        with FakeServer(incremental=incremental, tokens_per_event=5) as server:
            assert run(tmp_path, server, arguments=("--clients", "1")) == 0
        digests = [
            s["output_digest"] for s in result(tmp_path)["servers"][0]["samples"]
        ]
        found.append((server.prompts, digests))
    assert found[0] == found[1]


def test_two_servers_get_the_same_and_take_turns(tmp_path: Path) -> None:
    with FakeServer() as ours, FakeServer() as stock:
        assert run(tmp_path, ours, stock, arguments=("--round", "6")) == 0
    assert sorted(ours.prompts) == sorted(stock.prompts)
    labelled = [(at, "o") for at in ours.times] + [(at, "s") for at in stock.times]
    order = [label for _, label in sorted(labelled)]
    rounds = [(label, len(list(run))) for label, run in groupby(order)]
    assert rounds == [("o", 6), ("s", 12), ("o", 12), ("s", 6)]
    compared = result(tmp_path)["comparison"]
    assert compared["requests"] == compared["equal_prompts"] == REQUESTS
    assert compared["equal_answers_to_equal_prompts"] == REQUESTS
    assert compared["cached_share"] == pytest.approx(1, abs=0.2)
    assert compared["ttft_request_by_request"]["median"] > 0


def test_one_seed_is_one_run(tmp_path: Path) -> None:
    prompts = []
    for seed in ("3", "3", "4"):
        with FakeServer() as server:
            run(tmp_path, server, arguments=("--seed", seed, "--clients", "1"))
        prompts.append(server.prompts)
    assert prompts[0] == prompts[1] != prompts[2]


def test_histories_hold_own_or_made_up_answers(tmp_path: Path) -> None:
    reused = {}
    for answers in ("own", "made-up"):
        with FakeServer() as server:
            run(tmp_path, server, arguments=("--answers", answers, "--clients", "1"))
        reused[answers] = summary(tmp_path)["cached_tokens"]
    assert reused["own"] > reused["made-up"] > 0


def test_a_pass_starts_empty_where_that_is_asked_for(tmp_path: Path) -> None:
    for flush, flushes in (("pass", [0, REQUESTS]), ("start", [0]), ("never", [])):
        with FakeServer() as server:
            arguments = ("--passes", "2", "--flush", flush, "--clients", "1")
            assert run(tmp_path, server, arguments=arguments) == 0
        assert server.flushes == flushes
        first, second = summary(tmp_path)["by_pass"]
        assert first["requests"] == second["requests"] == REQUESTS
        warmer = second["cached_tokens"] - first["cached_tokens"]
        assert warmer == 0 if flush == "pass" else warmer > 0


def test_tokens_of_a_tier_can_be_required(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(hit_source="host") as server:
        assert run(tmp_path, server, arguments=("--require-tier", "host")) == 0
        required = ("--require-tier", "storage")
        assert run(tmp_path, server, arguments=required) == TIER_UNUSED
    assert "found 0 tokens from tier storage" in capsys.readouterr().err
    assert summary(tmp_path)["requests_beyond_reusable"] > 0


def test_a_server_without_metrics_is_measured_without_them(tmp_path: Path) -> None:
    with FakeServer(metrics=False) as server:
        assert run(tmp_path, server) == 0
    assert set(summary(tmp_path)["counters"].values()) == {None}


def test_a_trace_is_sent_in_its_order(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"input_length": 700, "output_length": 9, "hash_ids": [5, 6]},
        {"input_length": 1080, "output_length": 9, "hash_ids": [1, 2, 4]},
        {"input_length": 80, "output_length": 9, "hash_ids": [7]},
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    once = ("--trace", str(trace), "--clients", "1", "--requests", "3")
    with FakeServer() as server:
        assert run(tmp_path, server, arguments=(*once, "--scale", "1"), sizes=()) == 0
    assert [len(prompt) for prompt in server.prompts] == [1100, 700, 1080]
    assert server.prompts[0][:1024] == server.prompts[2][:1024]
    assert summary(tmp_path)["cached_tokens"] == 1024
    assert summary(tmp_path)["answer_tokens"] == 25


def test_a_warm_up_sends_the_workload_with_other_tokens(tmp_path: Path) -> None:
    with FakeServer() as ours, FakeServer() as stock:
        arguments = ("--warm-up", "7", "--flush", "start")
        assert run(tmp_path, ours, stock, arguments=arguments) == 0
    for server, facts in zip((ours, stock), result(tmp_path)["servers"], strict=True):
        warm, measured = server.prompts[:7], server.prompts[7:]
        assert server.flushes == [7]
        assert len(facts["samples"]) == len(measured) == REQUESTS
        assert sorted(map(len, warm))[0] in set(map(len, measured))
        assert not set(warm) & set(measured)
        # Shared beginnings stay shared: what resumes does so in the warm-up too.
        assert len({prompt[:64] for prompt in warm}) < len(warm)
