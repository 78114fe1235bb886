"""`sglang-qsa top` and `dashboard`: arguments only, so that the other commands need no
library."""

from __future__ import annotations

import argparse
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only its annotation; argparse has no public name for it.
    from argparse import _SubParsersAction


def add_parsers(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both commands."""
    top = commands.add_parser(
        "top", help="reuse by tier and state of the tiers of a running server"
    )
    top.add_argument("--url", default="http://127.0.0.1:30000", metavar="http://…")
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between looks"
    )
    top.add_argument(
        "--once", action="store_true", help="one look, without rates, then end"
    )
    top.set_defaults(run=_top)
    dashboard = commands.add_parser(
        "dashboard", help="print the Grafana dashboard, as JSON to import"
    )
    dashboard.set_defaults(run=_dashboard)


def dashboard_text() -> str:
    """The dashboard as it is in the package."""
    return (files("sglang_qsa") / "dashboards" / "sglang-qsa.json").read_text("utf-8")


def _top(options: argparse.Namespace) -> int:
    from sglang_qsa.watch import top

    return top.run(options.url, interval_s=options.interval, once=options.once)


def _dashboard(_: argparse.Namespace) -> int:
    print(dashboard_text(), end="")
    return 0
