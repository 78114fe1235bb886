"""What a stored prompt costs beyond its records, with the real model's sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_qsa.boundary import anchor
from sglang_qsa.tiers.store.namespace import Namespace
from sglang_qsa.tiers.store.record import Kind, file_bytes
from sglang_qsa.tiers.store.references import as_payload
from tests.deployments import DEPLOYMENTS, layout_of

PROMPT_TOKENS = 32_780


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_long_prompt_costs_its_records(name: str) -> None:
    """Headers, padding and the commit entry: at most one percent."""
    layout = layout_of(DEPLOYMENTS[name])
    namespace = Namespace.of(Path("store"), layout, 0)
    page_tokens = layout.geometry.page_tokens
    pages = anchor(PROMPT_TOKENS, page_tokens) // page_tokens
    commit = file_bytes(len(as_payload([f"{page:064x}" for page in range(pages)])))
    stored = (
        pages * namespace.file_bytes(Kind.PAGE)
        + namespace.file_bytes(Kind.CHECKPOINT)
        + commit
    )
    records = pages * layout.page_bytes + layout.checkpoint_bytes
    assert records < stored <= 1.01 * records
