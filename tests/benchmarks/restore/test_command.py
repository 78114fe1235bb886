"""The command against servers that are fake in all but the protocol."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.restore.between import OVERFILL
from tests.benchmarks.restore.runs import (
    CAPACITY_TOKENS,
    COPY_S_PER_BYTE,
    INFO,
    LENGTHS,
    LINKER,
    QUIET_S,
    result,
    rows,
    run,
    samples,
    serve,
)
from tests.benchmarks.restore.tiered_server import PAGE_BYTES

pytestmark = pytest.mark.usefixtures("quick", "no_plot")


def test_a_prompt_comes_back_from_host_memory(tmp_path: Path) -> None:
    with serve(load_s=0.3) as server:
        assert run(tmp_path, server) == 0
    for row, length in zip(rows(tmp_path), LENGTHS, strict=True):
        assert row["length_tokens"] == length
        assert row["tier_tokens"] == {"host": length}
        assert row["loaded_bytes"] == length // 64 * PAGE_BYTES
        assert row["compared"] == row["samples"] == 1
        assert row["compared_with"] == ["device hit after"]
        added_s = row["restored_s"]["median"] - row["device_hit_s"]["median"]
        assert row["added_s"]["median"] == pytest.approx(added_s, abs=1e-5)
        assert 0.2 < added_s < 3
        assert row["gb_per_s"] == pytest.approx(
            row["loaded_bytes"] / added_s / 1e9, 0.01
        )
        assert row["pinned_copy_s"] == pytest.approx(
            row["loaded_bytes"] * COPY_S_PER_BYTE
        )
        times = added_s / row["pinned_copy_s"]
        assert row["times_pinned_copy"] == pytest.approx(times, rel=0.01)
    assert not result(tmp_path)["partial"]
    assert not result(tmp_path)["faults"]


def test_requests_come_in_order_and_others_push_the_prompt_out(tmp_path: Path) -> None:
    with serve() as server:
        assert run(tmp_path, server) == 0
        sent = [list(group) for _, group in groupby(server.prompts)]
    assert not server.flushes
    place = 0
    for length in LENGTHS:
        first, *others = sent[place:]
        assert len(first) == 2
        assert len(first[0]) == length + 12
        restored = next(at for at, group in enumerate(others) if group[0] == first[0])
        fillers = [group[0] for group in others[:restored]]
        assert sum(map(len, fillers)) >= OVERFILL * CAPACITY_TOKENS
        assert len({filler[:64] for filler in fillers}) == len(fillers)
        assert len(others[restored]) == 2
        place += restored + 2
    assert place == len(sent)


def test_a_flush_leaves_the_prompt_to_storage(tmp_path: Path) -> None:
    info = INFO | {"hicache_storage_backend": "file"}
    with serve(info=info, tier="storage") as server:
        assert run(tmp_path, server, arguments=("--between", "flush")) == 0
    assert server.flushes == [2, 6]
    assert [row["tier_tokens"] for row in rows(tmp_path)] == [
        {"storage": length} for length in LENGTHS
    ]


def test_backups_are_waited_for(tmp_path: Path) -> None:
    flush = ("--between", "flush")
    with serve(backup_s=0.5) as server:
        assert run(tmp_path, server, arguments=flush) == 0
    for sample in samples(tmp_path):
        assert 0.5 + QUIET_S <= sample["settled_s"] < 4.5


def test_backups_are_not_waited_for_without_end(tmp_path: Path) -> None:
    arguments = ("--between", "flush", "--settle-s", "0.2")
    with serve(backup_s=30) as server:
        assert run(tmp_path, server, arguments=arguments) == 1
    for sample in samples(tmp_path):
        assert 0.2 <= sample["settled_s"] < 15


def test_a_linkers_restore_is_compared_with_the_hit_before(tmp_path: Path) -> None:
    with serve(info=LINKER, returns=False, load_s=0.2) as server:
        arguments = ("--between", "flush", "--settle-s", "0.2")
        assert run(tmp_path, server, arguments=arguments) == 0
    for row, length in zip(rows(tmp_path), LENGTHS, strict=True):
        assert row["tier_tokens"] == {"external": length}
        assert row["compared_with"] == ["device hit"]
        assert row["added_s"]["median"] > 0.1
    assert (
        "compared with the device hit before" in (tmp_path / "restore.md").read_text()
    )


def test_two_servers_get_the_same_and_take_turns(tmp_path: Path) -> None:
    arguments = ("--repeats", "2", "--between", "flush")
    with serve(load_s=0.4) as ours, serve(load_s=0.1) as stock:
        assert run(tmp_path, ours, stock, arguments=arguments) == 0
    assert ours.prompts == stock.prompts
    assert len(set(ours.prompts)) == 2 * len(LENGTHS)
    labelled = [(at, "o") for at in ours.times] + [(at, "s") for at in stock.times]
    order = [label for _, label in sorted(labelled)]
    turns = [(label, len(list(group))) for label, group in groupby(order)]
    assert turns == [("o", 4), ("s", 8), ("o", 4), ("s", 4), ("o", 8), ("s", 4)]
    both = zip(rows(tmp_path), rows(tmp_path, 1), strict=True)
    compared = zip(result(tmp_path)["comparison"], both, strict=True)
    for ratios, (first, second) in compared:
        assert ratios["length_tokens"] == first["length_tokens"]
        for name in ("restored_s", "added_s"):
            expected = first[name]["median"] / second[name]["median"]
            assert ratios[name] == pytest.approx(expected, rel=1e-3)


def test_a_warm_up_is_sent_and_not_kept(tmp_path: Path) -> None:
    arguments = ("--warm-up", "1", "--between", "flush")
    with serve() as server:
        assert run(tmp_path, server, arguments=arguments) == 0
    assert len(set(server.prompts)) == 2 * len(LENGTHS)
    assert [sample["repeat"] for sample in samples(tmp_path)] == [0, 0]


def test_one_seed_is_one_run(tmp_path: Path) -> None:
    prompts = []
    for seed in ("3", "3", "4"):
        with serve() as server:
            assert run(tmp_path, server, arguments=("--seed", seed)) == 0
        prompts.append(server.prompts)
    assert prompts[0] == prompts[1]
    assert not set(prompts[1]) & set(prompts[2])


def test_bytes_that_are_not_reported_are_missing(tmp_path: Path) -> None:
    with serve(metrics=False) as server:
        assert run(tmp_path, server, arguments=("--settle-s", "0.2")) == 0
    for row in rows(tmp_path):
        assert row["compared"] == 1
        assert row["loaded_bytes"] is row["gb_per_s"] is row["pinned_copy_s"] is None
    table = (tmp_path / "restore.md").read_text()
    assert table.count("| not reported | – | – | – |") == len(LENGTHS)
