"""Host memory: within the budget, both kinds usable, drafts counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_qsa.budget import (
    TOKENS_PER_CHECKPOINT,
    check_memory,
    parse_bytes,
    split_budget,
    split_ratio,
)
from sglang_qsa.cli import main
from sglang_qsa.errors import ConfigError
from sglang_qsa.layout import Layout
from tests.deployments import CONFIG_FILE, DEPLOYMENTS, layout_of
from tests.messages import assert_refusal

GB = 10**9
LAYOUT = layout_of(DEPLOYMENTS["default"])


def strides(layout: Layout) -> tuple[int, int]:
    return layout.page.stride_bytes, layout.checkpoint.stride_bytes


@given(st.integers(1, 2000), st.integers(1, 100_000), st.sampled_from([*DEPLOYMENTS]))
def test_what_a_budget_holds(size_gb: int, tokens: int, deployment: str) -> None:
    layout = layout_of(DEPLOYMENTS[deployment])
    pages_each = max(tokens // 64, 1)
    page_bytes, checkpoint_bytes = strides(layout)
    share = checkpoint_bytes + pages_each * page_bytes
    if share > size_gb * GB:
        with pytest.raises(ConfigError):
            split_budget(layout, size_gb * GB, tokens)
        return
    budget = split_budget(layout, size_gb * GB, tokens)
    assert budget.used_bytes <= size_gb * GB
    assert size_gb * GB - budget.used_bytes < page_bytes
    assert budget.pages >= budget.checkpoints * pages_each >= 1
    # No other checkpoint with its pages would fit.
    assert size_gb * GB < (budget.checkpoints + 1) * share


def test_32_gb() -> None:
    budget = split_budget(LAYOUT, 32 * GB)
    assert (LAYOUT.token_bytes, LAYOUT.checkpoint_bytes) == (25_344, 115_642_384)
    assert (budget.page_bytes, budget.checkpoint_bytes) == (1_622_016, 115_646_464)
    assert (budget.checkpoints, budget.pages) == (145, 9_390)
    assert budget.used_bytes == 31_999_467_520


def test_drafts_change_it_by_their_bytes_alone() -> None:
    draft = layout_of(DEPLOYMENTS["draft"])
    assert draft.page_bytes - LAYOUT.page_bytes == 135_168
    budget = split_budget(draft, 32 * GB)
    page_bytes, checkpoint_bytes = strides(draft)
    share = checkpoint_bytes + TOKENS_PER_CHECKPOINT // 64 * page_bytes
    assert budget.checkpoints == 32 * GB // share


def test_a_ratio() -> None:
    """Pages are given; checkpoints follow by the same rule, and there is one."""
    budget = split_ratio(LAYOUT, 6_400, tokens_per_checkpoint=4096)
    assert (budget.pages, budget.checkpoints) == (6_400, 100)
    assert split_ratio(LAYOUT, 3).checkpoints == 1


def test_more_than_the_machine_has() -> None:
    budget = split_budget(LAYOUT, 32 * GB)
    check_memory(budget, budget.used_bytes)
    with pytest.raises(ConfigError) as caught:
        check_memory(budget, budget.used_bytes - 1)
    assert_refusal(caught.value, origin="--hicache-size", found="9,390 pages")


def test_less_than_one_checkpoint_and_its_pages() -> None:
    with pytest.raises(ConfigError) as caught:
        split_budget(LAYOUT, 200_000_000)
    assert_refusal(caught.value, origin="--hicache-size", found="200,000,000 B")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("32GB", 32 * GB), ("1 tb", 10**12), ("5MB", 5_000_000), ("17", 17), ("8B", 8)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.5GB", "1GiB", "much"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text)
    assert_refusal(caught.value, origin="--host-budget", found=repr(text))


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", str(CONFIG_FILE), "--host-budget", "32GB"]) == 0
    assert "145 checkpoints" in capsys.readouterr().out
    assert main(["layout", str(CONFIG_FILE), "--host-budget", "1MB"]) == 2
    assert "--hicache-size" in capsys.readouterr().err
