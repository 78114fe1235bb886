"""What every refusal must say, in one line."""

from __future__ import annotations

import re

from sglang_qsa.errors import QsaError

_SHAPE = re.compile(r"(?P<origin>.+): found (?P<found>.+); wanted (?P<wanted>.+); .+")


def assert_refusal(error: QsaError, *, origin: str = "", found: str = "") -> None:
    """`error` names origin, finding, wish and way out, on one line."""
    text = str(error)
    assert "\n" not in text
    parts = _SHAPE.fullmatch(text)
    assert parts is not None, text
    assert origin in parts["origin"], text
    assert found in parts["found"], text
