"""The table of planes in README.md, rendered from the layout.

Run as a command, it compares the table with the layout, or writes it:

    python -m sglang_qsa.readme_table --check README.md   # exit code 2 if it differs
    python -m sglang_qsa.readme_table --write README.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout, Plane, Record

CONFIG = Path("tests/data/qwen3.8-flash-next.json")
"""Whose layout the table shows, relative to the README."""
BEGIN, END = "<!-- planes:begin -->", "<!-- planes:end -->"


def render(layout: Layout) -> str:
    """Markdown table: a line per plane, then the sum of each record."""
    page = f"page of {layout.geometry.page_tokens} tokens"
    return "\n".join(
        [
            "| plane | belongs to | shape | dtype | bytes |",
            "|---|---|---|---|---:|",
            *_record_lines(layout.page, page),
            *_record_lines(layout.checkpoint, "checkpoint"),
        ]
    )


def replace_table(text: str, table: str, *, origin: str) -> str:
    """`text` with `table` between the markers.

    Raises:
        ConfigError: the markers are not there once, in order.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest:
        raise ConfigError(
            refusal(
                found="no pair of markers",
                wanted=f"{BEGIN} and {END} once each",
                origin=origin,
                way_out="put them around the place of the table",
            )
        )
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m sglang_qsa.readme_table")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", metavar="README", type=Path)
    action.add_argument("--write", metavar="README", type=Path)
    options = parser.parse_args(arguments)
    readme: Path = options.check or options.write
    try:
        config = readme.parent / CONFIG
        layout = build(read_model_config(config), ServerFacts(), origin=str(config))
        text = readme.read_text(encoding="utf-8")
        wanted = replace_table(text, render(layout), origin=str(readme))
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.write:
        readme.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        print(
            f"{readme}: found a table of planes that is not the layout's; run "
            f"`python -m sglang_qsa.readme_table --write {readme}`",
            file=sys.stderr,
        )
        return 2
    return 0


def _record_lines(record: Record, unit: str) -> Iterator[str]:
    for plane in record.planes:
        yield (
            f"| `{plane.name}` | {unit} | {_shape(plane)} | {plane.dtype.label} "
            f"| {plane.record_bytes:,} |"
        )
    yield f"| **record** | {unit} | | | **{record.record_bytes:,}** |"


def _shape(plane: Plane) -> str:
    """`12 layer × 64 token × …`: sizes with the names of their axes."""
    sizes = zip(plane.shape, plane.dims, strict=True)
    return " × ".join(f"{size} {axis}" for size, axis in sizes)


if __name__ == "__main__":
    sys.exit(main())
