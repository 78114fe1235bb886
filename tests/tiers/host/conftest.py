from __future__ import annotations

import pytest

from tests.pools import PAGE_TOKENS


@pytest.fixture(autouse=True)
def a_checkpoint_for_ten_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes are short here."""
    monkeypatch.setenv("SGLANG_QSA_HOST_TOKENS_PER_CHECKPOINT", f"{10 * PAGE_TOKENS}")
