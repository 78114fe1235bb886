"""Tables and plot of `benchmarks.boundaries`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.boundary_rules import IDEAL, OURS, STOCK

ALL = "all of these"
"""The row that sums over all traces."""


def as_markdown(result: dict[str, Any]) -> str:
    """The result as tables, with what it was measured on."""
    facts, arguments = result["machine"], result["arguments"]
    rows, cost = result["rows"], result["planning_us"]
    main = [row for row in rows if row["rule"] in (IDEAL, STOCK, OURS)]
    parts = [row for row in rows if row["trace"] == ALL]
    lines = [
        "# Boundaries: what each checkpoint rule makes reusable",
        "",
        f"{facts['cpu']}, Python {facts['python']}, commit {facts['commit'][:12]}. "
        f"Prefill chunk {arguments['chunk_tokens']:,} tokens, seed "
        f"{arguments['seed']}, traces: {arguments['traces']}. One request after the "
        "other, nothing evicted. Ideal: a checkpoint at every page.",
        "",
        *_table(main, "trace", "rule"),
        "",
        "What the parts are worth, over all traces; stock takes one snapshot a "
        "forward:",
        "",
        *_table(parts, "rule"),
        "",
        "Beyond the device, after the admission rule, were the device emptied before "
        "every request:",
        "",
        "| rule | reusable, of the ideal | checkpoints | GB | not kept |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {row['rule']} | {row['tier_share_of_ideal']:.2%} "
            f"| {row['tier_checkpoints']:,} "
            f"| {row['tier_checkpoint_bytes'] / 1e9:,.0f} "
            f"| {row['not_kept']:,} |"
            for row in parts
            if row["rule"] != IDEAL
        ),
        "",
        "Prompts of random lengths up to 8,192 tokens that a tier finds at their last "
        "chunk below the end, of each "
        f"{result['findable'][0]['prompts']}:",
        "",
        "| store chunk | " + " | ".join(result["findable"][0]["findable"]) + " |",
        "|---:|---:|---:|---:|",
        *(
            f"| {row['store_chunk']} | "
            + " | ".join(f"{share:.1%}" for share in row["findable"].values())
            + " |"
            for row in result["findable"]
        ),
        "",
        f"Planning one forward of one request: median {cost['median']} µs, "
        f"99th percentile {cost['p99']} µs.",
        "",
        "Targets missed: " + ("; ".join(result["targets_missed"]) or "none") + ".",
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]], *names: str) -> list[str]:
    head = (
        *names,
        "reusable, M tokens",
        "of the ideal",
        "wrong, M tokens",
        "checkpoints a request",
        "forwards a request",
        "checkpoints, GB",
        "pages, GB",
    )
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(names) + "---:|" * (len(head) - len(names)),
    ]
    for row in rows:
        cells = (
            *(row[name] for name in names),
            f"{row['reused_tokens'] / 1e6:.2f}",
            f"{row['share_of_ideal']:.2%}",
            f"{row['misled_tokens'] / 1e6:.2f}",
            f"{row['checkpoints_per_request']:.2f}",
            f"{row['forwards_per_request']:.2f}",
            f"{row['checkpoint_bytes'] / 1e9:,.0f}",
            f"{row['page_bytes'] / 1e9:,.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(result: dict[str, Any], path: Path) -> None:
    """Ideal, stock and ours side by side, one group of bars for each trace."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "boundaries"
    from matplotlib import pyplot

    rows = result["rows"]
    names = list(dict.fromkeys(row["trace"] for row in rows))
    panels = (
        ("reusable tokens, % of the ideal", "share_of_ideal", 100),
        ("checkpoints per request", "checkpoints_per_request", 1),
        ("checkpoints, GB", "checkpoint_bytes", 1e-9),
    )
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(13, 1.5 + 0.6 * len(names)),
        sharey=True,
        layout="constrained",
    )
    colours = {IDEAL: "#b0b0b0", STOCK: "#d1605e", OURS: "#3a76af"}
    for axis, (title, fact, scale) in zip(axes, panels, strict=True):
        for place, (rule, colour) in enumerate(colours.items()):
            values = [row[fact] * scale for row in rows if row["rule"] == rule]
            heights = [trace + (place - 1) * 0.27 for trace in range(len(names))]
            bars = axis.barh(heights, values, 0.25, color=colour, label=rule)
            labels = [f"{value:,.1f}" for value in values]
            axis.bar_label(bars, labels, padding=2, fontsize=7)
        axis.set_title(title, fontsize=10)
        axis.spines["top"].set_visible(False)
        axis.spines["right"].set_visible(False)
        axis.margins(x=0.15)
    for axis in axes[1:]:
        axis.set_xscale("log")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
