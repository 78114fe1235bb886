"""The plot of the report: times to first token, and what a restore adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import SIDE_COLOURS, as_svg, legend, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = {"cold": ("cold_s", ":"), "device hit": ("device_hit_s", "--")}


def draw(result: Mapping[str, Any]) -> str:
    """SVG text, also a file by itself."""
    return as_svg("restore", partial(_draw, servers=result["servers"]))


def _draw(figure: Figure, servers: Sequence[Mapping[str, Any]]) -> None:
    times, added = figure.subplots(1, 2)
    for server, colour in zip(servers, SIDE_COLOURS, strict=False):
        rows, name = server["rows"], server["name"]
        for label, (figure_name, style) in _LINES.items():
            _line(times, rows, figure_name, f"{name}, {label}", colour, style)
        _line(times, rows, "restored_s", f"{name}, restored", colour, "-")
        _line(added, rows, "added_s", f"{name}, restored", colour, "-")
        _ceiling(added, rows, f"{name}, pinned copy", colour)
    times.set_title("time to first token, ms")
    added.set_title("restored − device hit, ms")
    lengths = {row["length_tokens"] for server in servers for row in server["rows"]}
    for axis in (times, added):
        _scales(axis, sorted(lengths))
    legend(figure, times, added, columns=4)


def _line(
    axis: Axes,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    label: str,
    colour: str,
    style: str,
) -> None:
    """Medians, with bars from the smallest to the largest value."""
    rows = [row for row in rows if row[name]]
    if not rows:
        return
    medians, lows, highs = (
        [1e3 * row[name][part] for row in rows] for part in ("median", "low", "high")
    )
    axis.errorbar(
        [row["length_tokens"] for row in rows],
        medians,
        yerr=[_apart(medians, lows), _apart(highs, medians)],
        color=colour,
        linestyle=style,
        marker="o",
        markersize=3,
        capsize=2,
        label=label,
    )


def _ceiling(
    axis: Axes, rows: Sequence[Mapping[str, Any]], label: str, colour: str
) -> None:
    rows = [row for row in rows if row["pinned_copy_s"]]
    if rows:
        axis.plot(
            [row["length_tokens"] for row in rows],
            [1e3 * row["pinned_copy_s"] for row in rows],
            color=colour,
            linestyle="-.",
            label=label,
        )


def _scales(axis: Axes, lengths: Sequence[int]) -> None:
    """Logarithmic, where all that is drawn is above 0."""
    axis.set_xscale("log")
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    if 0 < axis.dataLim.y0 < float("inf"):
        axis.set_yscale("log")
        plain_ticks(axis.yaxis)
    axis.set_xlabel("tokens of the prefix")
    axis.grid(alpha=0.25)


def _apart(higher: Sequence[float], lower: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(higher, lower, strict=True)]
