"""`sglang-qsa top`: figures of two pages, and one clear line where there are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sglang_qsa.cli import main
from sglang_qsa.watch.page import Page, parse
from sglang_qsa.watch.reading import Reading
from sglang_qsa.watch.view import render

BEFORE = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{is_streaming="true"} 600.0
sglang:prompt_tokens_total{is_streaming="false"} 400.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="host"} 500.0
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs 3.0
# TYPE sglang_qsa_tier_usable gauge
sglang_qsa_tier_usable{store="lmcache"} 1.0
# TYPE sglang_qsa_transfer_bytes_total counter
sglang_qsa_transfer_bytes_total{direction="load",store="lmcache"} 1e6
"""
AFTER = (
    BEFORE.replace(" 600.0", " 1000.0")
    .replace(" 500.0", " 700.0")
    .replace(" 1e6", " 9e6")
    .replace('"lmcache"} 1.0', '"lmcache"} 0.0')
    + """\
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device"} 100.0
# TYPE sglang_qsa_quarantined_loads gauge
sglang_qsa_quarantined_loads{store="lmcache"} 2.0
# TYPE sglang_qsa_checkpoints_total counter
sglang_qsa_checkpoints_total{result="published"} 12.0
sglang_qsa_checkpoints_total{result="refused"} 1.0
"""
)


def page(text: str, seconds: float = 0.0) -> Page:
    return Page(parse(text, "test").samples, seconds)


def line(text: str, title: str) -> list[str]:
    (found,) = [
        row for row in text.splitlines() if row.strip().startswith(f"{title}  ")
    ]
    return found.split()[1:]


@contextmanager
def serving(*answers: tuple[int, str]) -> Iterator[str]:
    """A server that gives these answers, then the last one again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = left.pop(0) if len(left) > 1 else left[0]
            known = self.path == "/metrics"
            self.send_response(code if known else 404)
            self.end_headers()
            self.wfile.write(text.encode() if known else b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_totals_and_shares() -> None:
    text = render(Reading(page(BEFORE)))
    assert line(text, "host") == ["–", "–", "500", "50.0", "%"]
    assert line(text, "computed") == ["–", "–", "500", "50.0", "%"]
    assert line(text, "all") == ["–", "–", "1,000", "100.0", "%"]
    assert line(text, "device") == ["–"] * 4
    assert line(text, "lmcache")[:2] == ["yes", "–"]
    assert line(text, "requests") == ["running", "3", "waiting", "–"]


def test_rates_by_tier() -> None:
    """Two seconds later; a source that was not there before counts from 0."""
    text = render(Reading(page(AFTER, 12.0), page(BEFORE, 10.0)))
    assert line(text, "all")[0] == "200"
    assert line(text, "host")[:3] == ["100", "50.0", "%"]
    assert line(text, "device")[:3] == ["50", "25.0", "%"]
    assert line(text, "computed")[:3] == ["50", "25.0", "%"]
    assert line(text, "lmcache") == ["NO", "2", "–", "–", "–", "4.0", "MB", "–", "–"]
    assert line(text, "boundaries") == ["published", "12", "refused", "1"]


def test_a_server_that_started_anew_counts_from_nothing() -> None:
    found = Reading(page(BEFORE, 2.0), page(AFTER, 1.0))
    assert found.rate("sglang:prompt_tokens_total", is_streaming="true") == 600
    assert found.rate("sglang:prompt_tokens_total", is_streaming="false") == 0


def test_stock_server_is_named() -> None:
    stock = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 0.0\n"
    assert "stock server" in render(Reading(page(stock)))
    assert "stock server" not in render(Reading(page(BEFORE)))


def test_once(capsys: pytest.CaptureFixture[str]) -> None:
    with serving((200, AFTER)) as url:
        assert main(["top", "--url", url + "/", "--once"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(url)
    assert "\x1b" not in text
    assert line(text, "boundaries") == ["published", "12", "refused", "1"]


def test_looks_again_until_the_server_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving((200, BEFORE), (200, AFTER), (503, "")) as url:
        assert main(["top", "--url", url, "--interval", "0.1"]) == 2
    output = capsys.readouterr()
    assert output.out.count("prompt tokens") == 2
    assert "HTTP 503" in output.err


def test_interrupt_is_a_normal_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sglang_qsa.watch.top.time.sleep", interrupted)
    with serving((200, BEFORE)) as url:
        assert main(["top", "--url", url]) == 0


def refused(capsys: pytest.CaptureFixture[str], url: str) -> str:
    assert main(["top", "--url", url, "--once"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (text,) = output.err.splitlines()
    assert "; wanted " in text
    return text


@pytest.mark.parametrize(
    ("answer", "found", "way_out"),
    [
        ((404, ""), "HTTP 404", "--enable-metrics"),
        ((200, "<html>hello</html>"), "no metrics of SGLang", "SGLang server itself"),
        ((200, ""), "no metrics of SGLang", "SGLang server itself"),
        (
            (200, "# TYPE vllm:a gauge\nvllm:a 1.0\n"),
            "no metrics of SGLang",
            "SGLang server itself",
        ),
    ],
    ids=["no-page", "html", "empty", "another"],
)
def test_nothing_to_show(
    answer: tuple[int, str],
    found: str,
    way_out: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(answer) as url:
        text = refused(capsys, url)
    assert f"{url}/metrics: found {found}; " in text
    assert way_out in text


def _closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (_closed_port, "Connection refused"),
        (lambda: "http://127.0.0.1:port", "no answer"),
        (lambda: "127.0.0.1:30000", "'127.0.0.1:30000'"),
    ],
    ids=["closed", "no-port", "no-scheme"],
)
def test_not_reachable(
    url: Callable[[], str], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found in refused(capsys, url())
