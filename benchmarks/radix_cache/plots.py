"""The plots of the report, as SVG text for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import SIDE_COLOURS, WIDTH_INCHES, as_svg, legend, plain_ticks
from benchmarks.radix_cache.samples import COMPUTED, SOURCES, UNSPLIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE_COLOURS = {
    "device": "#3a76af",
    "host": "#59a14f",
    "storage": "#e8a33d",
    "external": "#8e6bbf",
    UNSPLIT: "#6d6d6d",
    COMPUTED: "#d4d4d4",
}


def draw(servers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """SVG of each plot by its name, out of the servers of a result."""
    plots = {"reuse": _reuse, "latency": _latency, "timeline": _timeline}
    return {
        name: as_svg(name, partial(plot, servers=servers))
        for name, plot in plots.items()
    }


def _reuse(figure: Figure, servers: Sequence[Mapping[str, Any]]) -> None:
    """Prompt tokens by where they came from, one bar a server and pass."""
    bars = [
        (_bar_label(server, at), part)
        for server in servers
        for at, part in enumerate(server["summary"]["by_pass"])
    ]
    figure.set_size_inches(WIDTH_INCHES, 1.4 + 0.45 * max(len(bars), 1))
    axis = figure.subplots()
    left = [0.0] * len(bars)
    for source in SOURCES:
        shares = [
            100 * part["tokens_by_source"][source] / max(part["prompt_tokens"], 1)
            for _, part in bars
        ]
        if not any(shares):
            continue
        drawn = axis.barh(
            range(len(bars)),
            shares,
            0.65,
            left,
            color=SOURCE_COLOURS[source],
            label=source,
        )
        labels = [f"{share:.1f} %" if share > 4 else "" for share in shares]
        axis.bar_label(drawn, labels, label_type="center", fontsize=8)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for at, (_, part) in enumerate(bars):
        most = 100 * part["reusable_tokens"] / max(part["prompt_tokens"], 1)
        label = "sent before" if at == 0 else None
        axis.plot([most, most], [at - 0.42, at + 0.42], "k--", lw=1.2, label=label)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of prompt tokens")
    legend(figure, axis)


def _bar_label(server: Mapping[str, Any], at: int) -> str:
    passes = len(server["summary"]["by_pass"])
    return f"{server['name']}, pass {at + 1}" if passes > 1 else str(server["name"])


def _latency(figure: Figure, servers: Sequence[Mapping[str, Any]]) -> None:
    """Share of requests and of tokens that took at most so long."""
    panels = figure.subplots(1, 2)
    for server, colour in zip(servers, SIDE_COLOURS, strict=False):
        firsts = [sample["ttft_s"] for sample in server["samples"]]
        gaps = [
            sample["inter_token_s"]
            for sample in server["samples"]
            if sample["inter_token_s"]
        ]
        for axis, values in zip(panels, (firsts, gaps), strict=True):
            if values:
                axis.ecdf([1e3 * s for s in values], color=colour, label=server["name"])
    titles = ("time to first token, ms", "mean time between tokens of a request, ms")
    for axis, title in zip(panels, titles, strict=True):
        axis.set_title(title)
        axis.set_xscale("log")
        plain_ticks(axis.xaxis)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.25)
    panels[0].set_ylabel("share of requests")
    legend(figure, panels[0])


def _timeline(figure: Figure, servers: Sequence[Mapping[str, Any]]) -> None:
    """Each request at its start, and below it what the server evicted."""
    figure.set_size_inches(WIDTH_INCHES, 0.8 + 3.2 * max(len(servers), 1))
    rows = figure.subplots(
        2 * max(len(servers), 1),
        squeeze=False,
        sharex=True,
        height_ratios=[3, 1] * max(len(servers), 1),
    )
    axes = [row[0] for row in rows]
    for server, upper, lower in zip(servers, axes[::2], axes[1::2], strict=False):
        for source in SOURCES:
            samples = [s for s in server["samples"] if s["deepest_source"] == source]
            if samples:
                upper.scatter(
                    [sample["started_s"] for sample in samples],
                    [1e3 * sample["ttft_s"] for sample in samples],
                    s=14,
                    color=SOURCE_COLOURS[source],
                    edgecolors="#404040",
                    linewidths=0.3,
                    label=source,
                )
        upper.set_title(server["name"], loc="left")
        upper.set_yscale("log")
        plain_ticks(upper.yaxis)
        upper.set_ylabel("TTFT, ms")
        _evictions(lower, server)
    if servers:
        axes[-1].set_xlabel("seconds for which the server was measured")
        legend(figure, *axes[::2])


def _evictions(axis: Axes, server: Mapping[str, Any]) -> None:
    counter = "sglang:evicted_tokens_total"
    marks = server["marks"]
    values = [mark["counters"].get(counter) for mark in marks]
    axis.set_ylabel("evicted,\ntokens")
    if not any(value is not None for value in values):
        axis.text(0.5, 0.4, "not reported", transform=axis.transAxes, ha="center")
        axis.set_yticks([])
        return
    start = values[0] or 0
    grown = [(value or 0) - start for value in values]
    axis.step([mark["at_s"] for mark in marks], grown, color="#404040", where="post")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
