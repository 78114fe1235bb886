"""Plots as SVG text: a file by itself, and a part of a page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

from sglang_qsa.errors import ConfigError, refusal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH_INCHES = 10
SIDE_COLOURS = ("#3a76af", "#d1605e")


def require_library() -> None:
    """Refuse a run whose report could not be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            refusal(
                found="no matplotlib",
                wanted="the library that draws the report",
                origin="the Python of this run",
                way_out="pip install -r requirements/dev.txt",
            )
        )


def as_svg(name: str, plot: Callable[[Figure], None]) -> str:
    """What `plot` draws; equal drawings are equal texts.

    Args:
        name: begins every id, so that no other plot of a page has the same.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
    }
    text = StringIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH_INCHES, 4), layout="constrained")
        plot(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    return _inlined(text.getvalue(), name)


def _inlined(svg: str, name: str) -> str:
    """Without the head of a file, and with ids that no other plot of a page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def plain_ticks(axis: Axis) -> None:
    """Numbers in full on a logarithmic axis."""
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(LogFormatter())


def legend(figure: Figure, *axes: Axes, columns: int = 8) -> None:
    """Below the figure, each label once."""
    found: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(len(found), columns),
        )
