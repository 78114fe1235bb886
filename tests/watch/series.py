"""Every series that may be on a server's metrics page, and the labels of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sglang_qsa.metrics import METRICS

SUFFIXES = {
    "Counter": ("_total",),
    "Gauge": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
    "Summary": ("_sum", "_count"),
}
OURS = {metric.name: metric for metric in METRICS}


@cache
def upstream() -> frozenset[str]:
    """Series that the installed SGLang declares, read from its source as text."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "srt" / "observability"
    text = (folder / "metrics_collector.py").read_text("utf-8")
    return frozenset(_declared(ast.parse(text)))


def _declared(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        for keyword in node.keywords:
            name = keyword.value
            if keyword.arg == "name" and isinstance(name, ast.Constant):
                base = str(name.value).removesuffix("_total")
                whole = base if node.func.id == "Counter" else str(name.value)
                yield from (whole + end for end in SUFFIXES.get(node.func.id, ()))


def known() -> frozenset[str]:
    return upstream() | OURS.keys()
