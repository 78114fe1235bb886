"""The result as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.radix_cache import counters
from benchmarks.radix_cache.plots import draw
from benchmarks.radix_cache.samples import SOURCES
from benchmarks.radix_cache.summary import QUANTILES

MISSING = "not reported"

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .8rem; text-align: right; border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
.missing { color: #999; font-style: italic; }
.banner { background: #fdecea; border-left: 4px solid #c0392b; padding: .6rem 1rem; }
.note { color: #555; }
svg { max-width: 100%; height: auto; }
code { font-size: .85em; overflow-wrap: anywhere; }
"""

Row = tuple[str, Callable[[Mapping[str, Any]], str], Callable[[Any], Any] | None]


def as_page(result: Mapping[str, Any]) -> str:
    """HTML with the summary, the plots and what was run; no script, no links."""
    servers, plots = result["servers"], draw(result["servers"])
    arguments = result["arguments"]
    source = arguments["trace"] or arguments["workload"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>radix_cache: {escape(str(source))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Prefix cache: {escape(str(source))}</h1>",
        f'<p class="note">{escape(_headline(result))}</p>',
        *_banners(result),
        *_section("Summary", _summary(result)),
        *_section(
            "Where prompt tokens came from",
            plots["reuse"],
            "As each server reports it for each request. Dashed: what this run had "
            "sent before, the most that a cache of unlimited size could serve.",
        ),
        *_section("Latency", plots["latency"], "Share of requests below each time."),
        *_section(
            "Timeline",
            plots["timeline"],
            "Each dot is a request, coloured by the deepest tier that served it.",
        ),
        *_section("By workload", _by_workload(servers)),
        *_section("Time to first token by deepest source", _by_source(servers)),
        *_section(
            "Counters of the servers", _counters(servers), _counters_note(servers)
        ),
        *_section("Servers", _facts(servers)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _headline(result: Mapping[str, Any]) -> str:
    arguments, facts = result["arguments"], result["client_machine"]
    return (
        f"{result['wanted_requests']:,} requests to each server, "
        f"{arguments['clients']} clients, seed {arguments['seed']}, "
        f"scale {arguments['scale']:g}, passes {arguments['passes']}, "
        f"flush {arguments['flush']}, answers {arguments['answers']}. "
        f"Client: {facts['cores']} cores, commit {facts['commit'][:12]}. "
        f"{arguments['note']}"
    )


def _banners(result: Mapping[str, Any]) -> list[str]:
    banners = []
    if result["partial"]:
        banners.append(f"PARTIAL RESULT. {result['stopped']}")
    if result["left_out_turns"]:
        banners.append(
            f"{result['left_out_turns']:,} turns were left out: longer than a server "
            "takes."
        )
    banners += [
        f"{server['name']} served {count:,} requests more than this run had sent "
        "before: it was not empty. Use --flush start or another --seed."
        for server in result["servers"]
        if (count := server["summary"]["requests_beyond_reusable"])
    ]
    return [f'<p class="banner">{escape(text)}</p>' for text in banners]


def _section(title: str, content: str, note: str = "") -> list[str]:
    lines = [f"<section><h2>{escape(title)}</h2>"]
    if note:
        lines.append(f'<p class="note">{escape(note)}</p>')
    return [*lines, content, "</section>"]


def _summary(result: Mapping[str, Any]) -> str:
    servers, comparison = result["servers"], result["comparison"]
    head = ["", *(server["name"] for server in servers)]
    if comparison:
        head.append(f"ratio on {comparison['requests']:,} common requests")
    rows = []
    for label, read, ratio in _ROWS:
        cells = [read(server["summary"]) for server in servers]
        if comparison:
            value = ratio(comparison) if ratio else None
            cells.append("" if value is None else f"{value:.2f} ×")
        rows.append([label, *cells])
    table = _table(head, rows)
    if not comparison:
        return table
    median, low, high = (
        _number(comparison["ttft_request_by_request"][name], 2)
        for name in ("median", "low", "high")
    )
    return (
        table + '<p class="note">'
        "Median of the ratios of TTFT, request by request: "
        f"{median} (95 % confidence: {low} to {high}). "
        f"Equal answers to equal prompts: "
        f"{comparison['equal_answers_to_equal_prompts']:,} of "
        f"{comparison['equal_prompts']:,}.</p>"
    )


def _ms(group: str, name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda summary: _number(summary[group][name], 1, 1e3)


def _ratio_of(*path: str) -> Callable[[Any], Any]:
    def read(comparison: Any) -> Any:
        for name in path:
            comparison = comparison[name]
        return comparison

    return read


_ROWS: tuple[Row, ...] = (
    ("requests answered", lambda s: f"{s['requests']:,}", None),
    ("prompt tokens", lambda s: f"{s['prompt_tokens']:,}", None),
    (
        "reused, % of prompt tokens",
        lambda s: _number(s["cached_share"], 1, 100),
        _ratio_of("cached_share"),
    ),
    (
        "reused, % of what was sent before",
        lambda s: _number(s["cached_of_reusable"], 1, 100),
        None,
    ),
    *(
        (f"TTFT {name}, ms", _ms("ttft_s", name), _ratio_of("ttft_s", name))
        for name in ("mean", *QUANTILES)
    ),
    *(
        (
            f"inter-token latency {name}, ms",
            _ms("inter_token_s", name),
            _ratio_of("inter_token_s", name),
        )
        for name in ("mean", *QUANTILES)
    ),
    (
        "longest gap in an answer, ms",
        lambda s: _number(s["longest_gap_s"], 1, 1e3),
        None,
    ),
    (
        "answer tokens per second",
        lambda s: _number(s["answer_tokens_per_s"], 1),
        _ratio_of("answer_tokens_per_s"),
    ),
    ("prompt tokens per second", lambda s: _number(s["prompt_tokens_per_s"], 1), None),
    ("retractions", lambda s: f"{s['retractions']:,}", None),
)


def _by_workload(servers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{server['name']}: {kind}",
            f"{found['requests']:,}",
            f"{found['prompt_tokens']:,}",
            _number(found["cached_share"], 1, 100),
            _number(found["cached_of_reusable"], 1, 100),
            *(_ms("ttft_s", name)(found) for name in QUANTILES),
            _ms("inter_token_s", "p50")(found),
        ]
        for kind in sorted({k for s in servers for k in s["summary"]["by_workload"]})
        for server in servers
        if (found := server["summary"]["by_workload"].get(kind))
    ]
    head = (
        "",
        "requests",
        "prompt tokens",
        "reused, %",
        "of what was sent before, %",
        *(f"TTFT {name}, ms" for name in QUANTILES),
        "inter-token p50, ms",
    )
    return _table(head, rows)


def _by_source(servers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{server['name']}: {source}",
            f"{found['count']:,}",
            *(_number(found[name], 1, 1e3) for name in QUANTILES),
        ]
        for server in servers
        for source in SOURCES
        if (found := server["summary"]["ttft_s_by_deepest_source"].get(source))
    ]
    head = ["", "requests", *(f"{name}, ms" for name in QUANTILES)]
    return _table(head, rows)


def _counters(servers: Sequence[Mapping[str, Any]]) -> str:
    found = [server["summary"]["counters"] for server in servers]
    keys = list(dict.fromkeys(key for counted in found for key in counted))
    rows = []
    for key in keys:
        label, unit = counters.describe(key)
        cells = [_amount(counted.get(key), unit) for counted in found]
        rows.append([f"{label}, {unit}", *cells])
    return _table(["", *(server["name"] for server in servers)], rows)


def _counters_note(servers: Sequence[Mapping[str, Any]]) -> str:
    upto = ", ".join(
        f"{server['name']} up to request {summary['counters_up_to_request']:,}"
        for server in servers
        for summary in (server["summary"],)
    )
    return (
        f"Growth on /metrics during the run ({upto}). A counter that was never "
        "incremented is not on that page and counts as not reported; without "
        "--enable-metrics none is."
    )


def _facts(servers: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for server in servers:
        facts = server["facts"]
        tiers = "; ".join(f"{tier}: {what}" for tier, what in facts["tiers"].items())
        rows.append(
            f"<p><strong>{escape(server['name'])}</strong>, SGLang "
            f"{escape(facts['version'])}. Tiers: {escape(tiers or 'none')}.<br>"
            f"<code>{escape(facts['launch_command'])}</code></p>"
        )
    return "\n".join(rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ['<div class="table"><table><thead><tr>']
    lines += [f"<th>{escape(cell)}</th>" for cell in head]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = (
            f'<td class="missing">{cell}</td>'
            if cell == MISSING
            else f"<td>{escape(cell)}</td>"
            for cell in row
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return MISSING if value is None else f"{value * factor:,.{digits}f}"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,.{3 if unit == 'seconds' else 0}f}"
