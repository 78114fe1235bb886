"""Host memory: within the budget, both kinds usable, drafts counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_qsa.budget import TOKENS_PER_CHECKPOINT, parse_bytes, split_budget
from sglang_qsa.cli import main
from sglang_qsa.errors import ConfigError
from tests.deployments import CONFIG_FILE, DEPLOYMENTS, layout_of
from tests.messages import assert_refusal

GB = 10**9
LAYOUT = layout_of(DEPLOYMENTS["default"])


@given(st.integers(1, 2000), st.integers(1, 100_000), st.sampled_from([*DEPLOYMENTS]))
def test_what_a_budget_holds(size_gb: int, tokens: int, deployment: str) -> None:
    layout = layout_of(DEPLOYMENTS[deployment])
    pages_each = max(tokens // 64, 1)
    share = layout.checkpoint_bytes + pages_each * layout.page_bytes
    if share > size_gb * GB:
        with pytest.raises(ConfigError):
            split_budget(layout, size_gb * GB, tokens)
        return
    budget = split_budget(layout, size_gb * GB, tokens)
    assert budget.used_bytes <= size_gb * GB
    assert size_gb * GB - budget.used_bytes < layout.page_bytes
    assert budget.pages >= budget.checkpoints * pages_each >= 1
    # No other checkpoint with its pages would fit.
    assert size_gb * GB < (budget.checkpoints + 1) * share


def test_32_gb() -> None:
    budget = split_budget(LAYOUT, 32 * GB)
    assert (LAYOUT.token_bytes, budget.checkpoint_bytes) == (25_344, 115_642_384)
    assert (budget.checkpoints, budget.pages) == (145, 9_390)
    assert budget.used_bytes == 31_998_875_920


def test_drafts_change_it_by_their_bytes_alone() -> None:
    draft = layout_of(DEPLOYMENTS["draft"])
    assert draft.page_bytes - LAYOUT.page_bytes == 135_168
    budget = split_budget(draft, 32 * GB)
    share = draft.checkpoint_bytes + TOKENS_PER_CHECKPOINT // 64 * draft.page_bytes
    assert budget.checkpoints == 32 * GB // share


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
