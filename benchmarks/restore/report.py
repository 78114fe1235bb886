"""The result as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.restore.ceiling import NO_GPU
from benchmarks.restore.samples import HIT

MISSING = "not reported"
NONE = "–"

_HEAD = (
    *("prefix, tokens", "server", "n", "cold, ms", "device hit, ms", "restored, ms"),
    *("restored − hit, ms", "from the tier", "loaded, MB", "GB/s"),
    *("pinned copy, ms", "× pinned copy"),
)
_RATIOS = {
    "cold": "cold_s",
    "device hit": "device_hit_s",
    "restored": "restored_s",
    "restored − hit": "added_s",
}
_READ_IT = (
    "Time to first token: median (smallest–largest). n: samples that came whole from "
    "the tier and were compared, of those begun. A restored prompt is compared with "
    "the device hit right after it, which computes the same tokens after the same "
    "boundary."
)


def as_markdown(result: Mapping[str, Any]) -> str:
    """The tables, with what they were measured on."""
    facts, note = result["client_machine"], result["arguments"]["note"]
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    lines = [
        "# Restore by length of the prefix",
        "",
        *_banners(result),
        f"{facts['gpu'] or facts['cpu']}, {facts['cores']} cores, {versions}, commit "
        f"{facts['commit'][:12]}. {_how(result['arguments'])}",
        "",
        *_table(_HEAD, list(_rows(result))),
        "",
        f"{_READ_IT} {_copies(result['pinned_copies'])}",
        *_compared_before(result),
        *_comparison(result),
        "",
        "![Time to first token, and what a restore adds](restore.svg)",
        "",
        *map(_server, result["servers"]),
        *(["", note] if note else []),
    ]
    return "\n".join(lines) + "\n"


def _banners(result: Mapping[str, Any]) -> Iterator[str]:
    if result["partial"]:
        yield from (f"**PARTIAL RESULT.** {result['stopped']}", "")
    for fault in result["faults"]:
        yield from (f"**{fault['kind']}**: {fault['text']}", "")


def _how(arguments: Mapping[str, Any]) -> str:
    return (
        f"Repeats {arguments['repeats']}, seed {arguments['seed']}; "
        f"{arguments['tail_tokens']} tokens behind each prefix; between hit and "
        f"restore: {arguments['between']}."
    )


def _rows(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for length in _lengths(result):
        for server in result["servers"]:
            for row in server["rows"]:
                if row["length_tokens"] == length:
                    yield _row(row, server["name"], result["pinned_copies"]["device"])


def _lengths(result: Mapping[str, Any]) -> list[int]:
    rows = (row for server in result["servers"] for row in server["rows"])
    return list(dict.fromkeys(row["length_tokens"] for row in rows))


def _row(row: Mapping[str, Any], name: str, device: str) -> list[str]:
    tiers = ", ".join(f"{tier} {n:,}" for tier, n in row["tier_tokens"].items())
    loaded, copy_s = row["loaded_bytes"], row["pinned_copy_s"]
    without = device if device.startswith("no ") else NONE
    return [
        f"{row['length_tokens']:,}",
        name,
        f"{row['compared']}/{row['samples']}",
        _ms(row["cold_s"], 1),
        _ms(row["device_hit_s"], 1),
        _ms(row["restored_s"], 1),
        _ms(row["added_s"], 2),
        tiers or "nothing",
        _number(loaded, 2, 1e-6, MISSING if row["served"] else NONE),
        _number(row["gb_per_s"], 2),
        _number(copy_s, 2, 1e3, without),
        _number(row["times_pinned_copy"], 2, 1, without),
    ]


def _compared_before(result: Mapping[str, Any]) -> Iterator[str]:
    for server in result["servers"]:
        if any(HIT in row["compared_with"] for row in server["rows"]):
            yield ""
            yield (
                f"{server['name']}: some were compared with the device hit before, for "
                "the request after a restore was no device hit (a linker leaves a "
                "restored prompt to its request)."
            )


def _comparison(result: Mapping[str, Any]) -> Iterator[str]:
    if not result["comparison"]:
        return
    first, second = (server["name"] for server in result["servers"])
    rows = [
        [
            f"{row['length_tokens']:,}",
            *(_number(row[name], 2) for name in _RATIOS.values()),
        ]
        for row in result["comparison"]
    ]
    yield from ("", f"{first} / {second}, of the medians:", "")
    yield from _table(("prefix, tokens", *_RATIOS), rows)


def _copies(copies: Mapping[str, Any]) -> str:
    if copies["device"] == NO_GPU:
        return "The machine of the client has no GPU to copy to."
    return (
        "Pinned copy: as many bytes from pinned host memory to the GPU of the "
        f"client's machine ({copies['device']}), over one link, in this run; the bytes "
        "are those of all ranks of a server."
    )


def _server(server: Mapping[str, Any]) -> str:
    facts = server["facts"]
    tiers = "; ".join(f"{tier}: {what}" for tier, what in facts["tiers"].items())
    command = f", `{facts['launch_command']}`" if facts["launch_command"] else ""
    return f"* {server['name']}: SGLang {facts['version']}{command}. Tiers: {tiers}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _ms(times: Mapping[str, float] | None, digits: int) -> str:
    if times is None:
        return NONE
    median, low, high = (
        f"{1e3 * times[name]:,.{digits}f}" for name in ("median", "low", "high")
    )
    return f"{median} ({low}–{high})"


def _number(
    value: float | None, digits: int, factor: float = 1, missing: str = NONE
) -> str:
    return missing if value is None else f"{value * factor:,.{digits}f}"
