"""Figures: what is compared with what, counters, the ceiling, table and plot."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.restore import ceiling
from benchmarks.restore.moved import BACKUPS, LOADS
from benchmarks.restore.plot import draw
from benchmarks.restore.samples import COLD, HIT, HIT_AFTER, RESTORED, Answer, Sample
from benchmarks.restore.summary import spread
from tests.benchmarks.restore.runs import LENGTHS, result, rows, run, serve

SNAPSHOT = {
    "sglang:load_back_bytes_total": 1.0,
    "sglang_qsa_transfer_bytes_total (linker, load)": 2.0,
    "sglang_qsa_transfer_bytes_total (linker, offload)": 4.0,
    "sglang_qsa_transfer_bytes_total (lmcache, load)": 8.0,
    "sglang_qsa_store_bytes_total (written)": 16.0,
    "sglang_qsa_store_bytes_total (read)": 32.0,
    "sglang:backuped_tokens_total": 64.0,
    "sglang:hicache_backup_bytes_total": 128.0,
}


def answer(ttft_s: float = 1.0, **sources: int) -> Answer:
    return Answer(ttft_s, sources, (1, 2))


def sample(restored: Answer, after: Answer, hit: Answer | None = None) -> Sample:
    hit = hit or answer(0.2, device=128, computed=12)
    cold = answer(3.0, computed=140)
    answers = {COLD: cold, HIT: hit, RESTORED: restored, HIT_AFTER: after}
    return Sample(128, 0, answers)


def test_a_restore_is_compared_with_the_hit_right_after_it() -> None:
    found = sample(
        answer(0.5, host=128, computed=12), answer(0.1, device=128, computed=12)
    )
    assert found.served
    assert found.yardstick == HIT_AFTER
    assert found.added_s == pytest.approx(0.4)


def test_another_boundary_is_no_yardstick() -> None:
    further = answer(0.1, device=192, computed=4)
    found = sample(answer(0.5, host=128, computed=12), further)
    assert found.yardstick == HIT
    assert found.added_s == pytest.approx(0.3)
    deeper = sample(answer(0.5, host=136, computed=4), answer(0.1, computed=140))
    assert deeper.served
    assert deeper.yardstick is None
    assert deeper.added_s is None


@pytest.mark.parametrize(
    "sources",
    [
        {"device": 128, "computed": 12},
        {"device": 64, "host": 64, "computed": 12},
        {"host": 64, "computed": 76},
        {"cached, tier not reported": 128, "computed": 12},
        {"computed": 140},
    ],
)
def test_what_did_not_come_whole_from_a_tier_is_not_served(
    sources: dict[str, int],
) -> None:
    found = sample(Answer(0.5, sources, ()), answer(0.1, device=128, computed=12))
    assert not found.served
    assert found.added_s is None


def test_where_the_device_kept_nothing_nothing_is_restored() -> None:
    nothing = answer(computed=140)
    assert not sample(nothing, nothing, hit=nothing).served


def test_a_prompt_may_come_from_two_tiers() -> None:
    both = answer(0.5, host=64, storage=64, computed=12)
    assert sample(both, answer(0.1, device=128, computed=12)).served


def test_counters_are_those_of_their_direction() -> None:
    assert sum(series.total(SNAPSHOT) for series in LOADS) == 1 + 2 + 8
    backups = {
        tier: sum(series.total(SNAPSHOT) for series in group)
        for tier, group in BACKUPS.items()
    }
    assert backups == {"host": 128, "storage": 64 + 16, "external": 4}


def test_nothing_has_no_median() -> None:
    assert spread([]) is None
    assert spread([3, 1, 9]) == {"median": 3, "low": 1, "high": 9}


def test_without_a_gpu_there_is_no_ceiling() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert ceiling.measure([1000]) == ceiling.Ceiling(ceiling.NO_GPU, {})


@pytest.mark.gpu
def test_the_ceiling_grows_with_the_bytes() -> None:
    small, large = 1 << 24, (1 << 30) + 12345
    found = ceiling.measure([large, small])
    assert found.device
    rates = [size / found.seconds[size] for size in (small, large)]
    assert all(1e9 < rate < 2e12 for rate in rates)
    assert found.seconds[large] > 4 * found.seconds[small]


@pytest.mark.usefixtures("quick")
def test_table_and_plot_are_those_of_the_result(tmp_path: Path) -> None:
    with serve(load_s=0.2) as ours, serve(load_s=0.1) as stock:
        assert run(tmp_path, ours, stock, arguments=("--between", "flush")) == 0
    table = (tmp_path / "restore.md").read_text()
    for server, name in enumerate(("ours", "stock")):
        for row in rows(tmp_path, server):
            added = f"{1e3 * row['added_s']['median']:,.2f} ("
            (line,) = re.findall(rf"\| {row['length_tokens']} \| {name} \|.*", table)
            assert added in line
            assert f"| host {row['length_tokens']} |" in line
    for ratios in result(tmp_path)["comparison"]:
        assert f"| {ratios['restored_s']:.2f} | {ratios['added_s']:.2f} |" in table
    svg = (tmp_path / "restore.svg").read_text()
    assert svg == draw(result(tmp_path))
    texts = "".join(ElementTree.fromstring(svg).itertext())
    for label in (
        "ours, cold",
        "stock, restored",
        "stock, pinned copy",
        str(LENGTHS[1]),
    ):
        assert label in texts
    assert not re.search(r'href="(?!#)|url\((?!#)|<script|@import', svg)
