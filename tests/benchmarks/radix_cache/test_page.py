"""The report: one page with everything in it, as text and in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.radix_cache.command import main
from benchmarks.radix_cache.page import as_page
from benchmarks.radix_cache.plots import SOURCE_COLOURS, draw
from tests.benchmarks.radix_cache.fake_server import FakeServer

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PLOTS = ("reuse", "latency", "timeline")
VOID = {"meta", "br", "link", "img", "hr", "input"}

_MEASURE = """<script>
const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
const boxes = s => [...document.querySelectorAll(s)].map(box);
document.body.textContent = JSON.stringify({
  plots: boxes("svg"),
  marks: boxes("#timeline-figure_1 use, #timeline-figure_1 path").length,
  rows: boxes("tbody tr").length,
  page: document.documentElement.scrollWidth,
  window: document.documentElement.clientWidth,
  ids: [...document.querySelectorAll("[id]")].map(e => e.id),
});
</script>"""
"""Put at the end of a copy of the page: leaves what the browser made of it."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two servers, one without metrics, in two passes."""
    folder = tmp_path_factory.mktemp("report")
    with FakeServer() as ours, FakeServer(metrics=False, hit_source="host") as stock:
        urls = ("--url", ours.url, "--url-baseline", stock.url)
        small = ("--sessions", "4", "--scale", "0.3", "--set", "turns=3")
        more = ("--passes", "2", "--settle-s", "0.01", "--note", "a <b>note</b> & more")
        names = ("--name-baseline", "st<i>ck")
        assert main([*urls, *small, *more, *names, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def page(out: Path) -> str:
    return (out / "radix_cache.html").read_text()


@pytest.fixture(scope="module")
def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "radix_cache.json").read_text())
    return found


class _Structure(HTMLParser):
    """Collects tags and attributes; fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(page: str) -> None:
    structure = _Structure()
    structure.feed(page)
    assert not structure.open
    assert structure.tags["svg"] == len(PLOTS)
    assert not structure.tags["script"] + structure.tags["link"] + structure.tags["img"]
    targets = [
        value or ""
        for name, value in structure.attributes
        if name in {"href", "src", "xlink:href", "action"}
    ]
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_id_is_unique_and_found(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
    assert set(used) <= set(ids)


def test_figures_of_the_page_are_those_of_the_result(
    page: str, result: dict[str, Any]
) -> None:
    for server in result["servers"]:
        summary = server["summary"]
        assert f"<td>{summary['prompt_tokens']:,}</td>" in page
        assert f"<td>{1e3 * summary['ttft_s']['p99']:,.1f}</td>" in page
    ratio = result["comparison"]["ttft_s"]["p50"]
    assert f"<td>{ratio:.2f} ×</td>" in page


def test_what_a_server_does_not_report_is_missing(page: str) -> None:
    row = re.search(r"<tr><td>evicted from the device, tokens</td>(.*?)</tr>", page)
    assert row is not None
    assert re.fullmatch(r'<td>[\d,]+</td><td class="missing">not reported</td>', row[1])


def test_texts_of_users_are_escaped(page: str) -> None:
    assert "a &lt;b&gt;note&lt;/b&gt; &amp; more" in page
    assert "st&lt;i&gt;ck: host" in page
    assert "<i>" not in page


def test_equal_results_are_equal_pages(page: str, result: dict[str, Any]) -> None:
    assert as_page(result) == page


def test_nothing_measured_can_be_drawn(result: dict[str, Any]) -> None:
    empty = [server | {"samples": [], "marks": []} for server in result["servers"]]
    for server in empty:
        server["summary"] = server["summary"] | {"by_pass": []}
    assert set(draw(empty)) == set(draw([])) == set(PLOTS)


@pytest.fixture(scope="module")
def browser() -> str:
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip("no headless browser: none of " + ", ".join(BROWSERS) + " on PATH")


def look(browser: str, file: Path, folder: Path, *options: str) -> tuple[str, str]:
    """Output and messages of a browser without a network that opens `file`."""
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}"),
        *("--enable-logging=stderr", *options, file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("width", [1200, 480])
def test_a_browser_lays_the_page_out(
    browser: str, page: str, tmp_path: Path, width: int
) -> None:
    copy = tmp_path / "page.html"
    copy.write_text(page.replace("</body>", _MEASURE + "</body>"))
    window = f"--window-size={width},900"
    text, messages = look(browser, copy, tmp_path / "profile", window, "--dump-dom")
    body = re.search(r"<body>(.*)</body>", text, re.DOTALL)
    assert body is not None
    found = json.loads(body[1])
    assert len(found["plots"]) == len(PLOTS)
    assert all(w > 300 and h > 50 for w, h in found["plots"])
    assert found["marks"] > 48
    assert found["rows"] > 20
    assert found["page"] <= found["window"]
    assert len(found["ids"]) == len(set(found["ids"]))
    assert "CONSOLE" not in messages


def test_a_browser_draws_the_plots(browser: str, out: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    options = ("--window-size=1200,3600", f"--screenshot={picture}")
    look(browser, out / "radix_cache.html", tmp_path / "profile", *options)
    seen = Image.open(picture).convert("RGB")
    colours = {colour: n for n, colour in seen.getcolors(2**24) or []}
    for source in ("device", "host", "computed"):
        red, green, blue = bytes.fromhex(SOURCE_COLOURS[source][1:])
        assert colours.get((red, green, blue), 0) > 1000, source
