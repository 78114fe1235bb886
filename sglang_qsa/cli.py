"""`sglang-qsa`: look at the layout, check a launch, run the demo, mind the store, watch
a server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sglang_qsa import __version__, demo
from sglang_qsa.budget import (
    TOKENS_PER_CHECKPOINT,
    HostBudget,
    parse_bytes,
    split_budget,
)
from sglang_qsa.errors import REFUSED, QsaError
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout, Record, plane_as_dict
from sglang_qsa.tiers.store import cli as store
from sglang_qsa.watch import cli as watch


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 when all is well, 2 when something is refused."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except QsaError as error:
        print(f"sglang-qsa: {error}", file=sys.stderr)
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang-qsa", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    layout = commands.add_parser("layout", help="planes, bytes and layout id")
    layout.add_argument("config", type=Path, metavar="CONFIG.json")
    layout.add_argument("--tp-size", type=int, default=1)
    layout.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE")
    layout.add_argument("--index-dtype", default="auto", metavar="DTYPE")
    layout.add_argument("--mamba-ssm-dtype", metavar="DTYPE")
    layout.add_argument("--draft", action="store_true", help="count MTP draft rows")
    layout.add_argument(
        "--host-budget",
        metavar="BYTES",
        help="divide host memory of one rank, for example 32GB",
    )
    layout.add_argument(
        "--host-tokens-per-checkpoint", type=int, default=TOKENS_PER_CHECKPOINT
    )
    layout.add_argument("--json", action="store_true", help="print JSON")
    layout.set_defaults(run=_layout)

    check = commands.add_parser(
        "check", help="go or refuse, for the arguments of a launch (needs no GPU)"
    )
    check.add_argument(
        "launch_arguments",
        nargs=argparse.REMAINDER,
        metavar="-- LAUNCH_SERVER_ARGUMENTS",
    )
    check.set_defaults(run=_check)

    story = commands.add_parser(
        "demo", help="prompt, kill -9, restart, restore, on a tiny model"
    )
    demo.add_arguments(story)
    story.set_defaults(run=demo.main)
    store.add_parser(commands)
    watch.add_parsers(commands)
    return parser


def _layout(options: argparse.Namespace) -> int:
    layout = build(
        read_model_config(options.config),
        ServerFacts(
            tp_size=options.tp_size,
            kv_cache_dtype=options.kv_cache_dtype,
            qsa_indexer_dtype=options.index_dtype,
            mamba_ssm_dtype=options.mamba_ssm_dtype,
            draft=options.draft,
        ),
        origin=str(options.config),
    )
    budget = None
    if options.host_budget:
        budget = split_budget(
            layout,
            parse_bytes(options.host_budget),
            options.host_tokens_per_checkpoint,
        )
    print(_as_json(layout, budget) if options.json else _as_table(layout, budget))
    return 0


def _as_json(layout: Layout, budget: HostBudget | None) -> str:
    document: dict[str, Any] = {
        "layout_id": layout.layout_id,
        "token_bytes": layout.token_bytes,
        "page_bytes": layout.page_bytes,
        "checkpoint_bytes": layout.checkpoint_bytes,
        "planes": [plane_as_dict(plane) for plane in layout.planes],
    }
    if budget is not None:
        document["host_budget"] = {
            "pages": budget.pages,
            "checkpoints": budget.checkpoints,
            "used_bytes": budget.used_bytes,
        }
    return json.dumps(document, indent=2)


def _as_table(layout: Layout, budget: HostBudget | None) -> str:
    rows = [("plane", "shape of one record", "dtype", "bytes")]
    tokens = layout.geometry.page_tokens
    for title, record in (
        (f"page of {tokens} tokens", layout.page),
        ("checkpoint", layout.checkpoint),
    ):
        rows += _record_rows(title, record)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(
            cell.rjust(width) if column == 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"bytes per token  {layout.token_bytes:,}",
            f"layout id        {layout.layout_id} (without a weights fingerprint)",
            *([] if budget is None else _budget_lines(budget, tokens)),
        ]
    )


def _budget_lines(budget: HostBudget, page_tokens: int) -> list[str]:
    return [
        "",
        f"host memory      {budget.pages:,} pages ({budget.pages * page_tokens:,} "
        f"tokens, {budget.pages_bytes:,} B)",
        f"                 {budget.checkpoints:,} checkpoints "
        f"({budget.checkpoints_bytes:,} B)",
        f"                 {budget.used_bytes:,} B in all",
    ]


def _record_rows(title: str, record: Record) -> list[tuple[str, str, str, str]]:
    planes = [
        (
            plane.name,
            " × ".join(
                f"{size} {axis}"
                for size, axis in zip(plane.shape, plane.dims, strict=True)
            ),
            plane.dtype.label,
            f"{plane.record_bytes:,}",
        )
        for plane in record.planes
    ]
    return [*planes, (title, "", "", f"{record.record_bytes:,}"), ("", "", "", "")]


def _check(options: argparse.Namespace) -> int:
    arguments = list(options.launch_arguments)
    if arguments[:1] == ["--"]:
        del arguments[0]
    if find_spec("sgl_kernel") is None:
        _run_again_on_cpu_engine()
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    from sglang_qsa.preflight import findings

    load_plugins()
    refused = 0
    for finding in findings(prepare_server_args(arguments)):
        if finding.refused:
            refused += 1
            print(f"REFUSED  {finding.as_error()}")
        else:
            print(f"ok       {finding.what}: {finding.found}")
    print(f"{refused} refused" if refused else "go")
    return REFUSED if refused else 0


def _run_again_on_cpu_engine() -> None:
    """Importing SGLang needs `sgl_kernel`; the slim CPU install has a stand-in."""
    from sglang_qsa.demo.cpu_engine import child_environment

    os.execve(sys.executable, [sys.executable, *sys.argv], child_environment())


if __name__ == "__main__":
    sys.exit(main())
