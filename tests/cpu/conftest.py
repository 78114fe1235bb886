"""What the tests with real servers share.

Servers are fixtures of single modules: one at a time is what a machine with two
cores can run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_qsa.demo.tiny_model import cached_checkpoint


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The demo's checkpoint, from the user's cache directory."""
    return cached_checkpoint()


@pytest.fixture(scope="session")
def tiny_model_with_drafts() -> Path:
    """Another checkpoint, with an MTP layer."""
    return cached_checkpoint(mtp=True)
