"""One line that says everything, and classes that callers may rely on."""

from __future__ import annotations

import pytest

from sglang_qsa import errors
from sglang_qsa.errors import QsaError, StoreError, refusal
from tests.messages import assert_refusal


def test_refusal_is_one_line() -> None:
    text = refusal(found="1", wanted="2", origin="a file", way_out="correct it")
    assert text == "a file: found 1; wanted 2; correct it"
    assert_refusal(QsaError(text), origin="a file", found="1")


@pytest.mark.parametrize("name", ["ConfigError", "UpstreamMismatch", "LayoutMismatch"])
def test_what_ends_a_launch_is_no_store_error(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, QsaError)
    assert not issubclass(error, StoreError)


@pytest.mark.parametrize("name", ["StoreUnavailable"])
def test_what_a_tier_reports_is_a_store_error(name: str) -> None:
    assert issubclass(getattr(errors, name), StoreError)
    assert issubclass(StoreError, QsaError)
