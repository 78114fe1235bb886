"""The Grafana dashboard asks only for what a server can show."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglang_qsa.watch
from sglang_qsa.cli import main
from sglang_qsa.watch.cli import dashboard_text
from tests.watch.promql import references
from tests.watch.series import OURS, known, upstream

BOARD: dict[str, Any] = json.loads(dashboard_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [target["expr"] for _, target in TARGETS]
SCRAPED = {"instance", "le"}
"""Labels that Prometheus adds, or a histogram has."""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_exists(expression: str) -> None:
    found = references(expression)
    assert found.metrics
    assert found.metrics <= known()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_exists(expression: str) -> None:
    found = references(expression)
    ours = [OURS[name] for name in found.metrics if name in OURS]
    for metric in ours:
        assert found.labels <= SCRAPED | set(metric.labels)


@pytest.mark.parametrize(("panel", "target"), TARGETS)
def test_legends_name_labels_that_are_kept(
    panel: dict[str, Any], target: dict[str, Any]
) -> None:
    named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert named == references(target["expr"]).grouped - SCRAPED, panel["title"]


def test_every_metric_of_ours_is_shown() -> None:
    shown = {name for text in EXPRESSIONS for name in references(text).metrics}
    assert OURS.keys() <= shown


def test_nothing_but_counters_has_a_rate() -> None:
    for expression in EXPRESSIONS:
        rated = set(re.findall(r"rate\(([\w:]+)\{", expression))
        assert all(
            name.endswith(("_total", "_bucket", "_sum", "_count")) for name in rated
        )


def test_variables() -> None:
    variables = {entry["name"]: entry for entry in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"])))
    assert used - {"__rate_interval"} == variables.keys()
    query = variables["instance"]["query"]["query"]
    (asked,) = re.findall(r"label_values\(([\w:]+), instance\)", query)
    assert asked in upstream()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(sglang_qsa_lookup_total[5m]))",
        "sum(sglang:cached_token_total) or vector(0)",
        "slang:num_running_reqs",
        'sum by (result) (sglang_qsa_stores_total{store="a"} / cached)',
    ],
)
def test_a_metric_that_does_not_exist_is_found(wrong: str) -> None:
    assert not references(wrong).metrics <= known()


def test_upstream_is_read() -> None:
    found = upstream()
    assert len(found) > 100
    assert "sglang:cached_tokens_total" in found
    assert "sglang:time_to_first_token_seconds_bucket" in found
    assert "sglang:time_to_first_token_seconds" not in found


def _literals() -> Iterator[str]:
    for file in Path(sglang_qsa.watch.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_top_reads_metrics_that_exist() -> None:
    read = {text for text in _literals() if re.fullmatch(r"sglang(:|_qsa_)\w+", text)}
    assert len(read) > 15
    assert read <= known()


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard"]) == 0
    assert json.loads(capsys.readouterr().out) == BOARD
