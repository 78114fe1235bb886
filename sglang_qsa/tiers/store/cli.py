"""`sglang-qsa store`: arguments only, so that the other commands need no library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only its annotation; argparse has no public name for it.
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `store` and its actions."""
    store = commands.add_parser(
        "store", help="look into, verify and shrink a record store, live or stopped"
    )
    actions = store.add_subparsers(required=True, metavar="ACTION")
    listed = _action(actions, "ls", "the checkpoints, last used first")
    listed.set_defaults(run=_run, action="ls")
    verified = _action(actions, "verify", "recompute every checksum")
    verified.add_argument(
        "--repair",
        action="store_true",
        help="set damaged records aside, withdraw checkpoints that lost a part",
    )
    verified.set_defaults(run=_run, action="verify")
    collected = _action(actions, "gc", "remove what no checkpoint needs")
    collected.add_argument(
        "--budget-bytes",
        type=int,
        metavar="N",
        help="also evict the least recently used until a namespace has at most this",
    )
    collected.set_defaults(run=_run, action="gc")
    counted = _action(actions, "stats", "records and bytes")
    counted.set_defaults(run=_run, action="stats")


def _action(
    actions: _SubParsersAction[argparse.ArgumentParser], name: str, help_text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=help_text)
    parser.add_argument("--dir", type=Path, required=True, help="of the store")
    parser.add_argument("--namespace", metavar="NAME", help="only this one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(options: argparse.Namespace) -> int:
    from sglang_qsa.tiers.store import commands

    return commands.run(options)
