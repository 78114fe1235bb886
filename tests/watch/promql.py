"""What a PromQL expression refers to."""

from __future__ import annotations

import re
from dataclasses import dataclass

WORDS = frozenset({"by", "without", "on", "ignoring", "or", "and", "unless", "bool"})

_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_CALL = re.compile(r"[a-zA-Z_]\w*\s*\(")


@dataclass(frozen=True, slots=True)
class References:
    metrics: frozenset[str]
    labels: frozenset[str]
    """Of matchers and groupings."""
    grouped: frozenset[str]


def references(expression: str) -> References:
    """Metrics and labels of an expression; whatever is not PromQL's own is a metric."""
    assert expression.count("(") == expression.count(")"), expression
    grouped = {
        label.strip()
        for labels in _GROUPING.findall(expression)
        for label in labels.split(",")
    }
    matched: set[str] = set()
    for _, matchers in _SELECTOR.findall(expression):
        pairs = _MATCHER.findall(matchers)
        assert len(pairs) == matchers.count('"') // 2, matchers
        matched |= {label for label, _ in pairs}
    bare = _GROUPING.sub(" ", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = _CALL.sub("(", bare)
    metrics = set(_NAME.findall(bare)) - WORDS
    return References(
        frozenset(metrics), frozenset(matched | grouped), frozenset(grouped)
    )
