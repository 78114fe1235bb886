"""What `sglang-qsa top` shows, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_qsa.watch.reading import Reading

ABSENT = "–"
SOURCES = ("device", "host", "storage", "total")
"""SGLang's names; `total` where a server does not tell them apart."""

Number = float | None


def render(reading: Reading) -> str:
    """The whole screen. A series that the server does not have is `ABSENT`."""
    parts = [_server(reading), _tokens(reading), _tiers(reading), _host(reading)]
    parts += [_store(reading), _counts(reading)]
    if not reading.page.ours:
        parts.append(
            "Nothing was counted by sglang_qsa yet, or this is a stock server."
        )
    return "\n\n".join(parts)


def _server(reading: Reading) -> str:
    active = reading.total("sglang:mamba_used_tokens")
    kept = reading.total("sglang:mamba_evictable_tokens")
    in_host = reading.total("sglang:hicache_host_mamba_used_states")
    requests = _fields(
        "requests",
        ("running", _whole(reading.total("sglang:num_running_reqs"))),
        ("waiting", _whole(reading.total("sglang:num_queue_reqs"))),
    )
    states = _fields(
        "states",
        ("in use", _whole(active)),
        ("kept on the device", _whole(kept)),
        ("kept in host memory", _whole(in_host)),
    )
    return f"{requests}\n{states}"


def _tokens(reading: Reading) -> str:
    """Prompt tokens by where they came from; the rest was computed."""
    rows = [("prompt tokens", "per s", "share", "in all", "share")]
    columns: list[dict[str, Number]] = []
    for read in (reading.rate, reading.total):
        found = {
            source: read("sglang:cached_tokens_total", cache_source=source)
            for source in SOURCES
        }
        whole = read("sglang:prompt_tokens_total")
        if whole is not None:
            served = sum(value or 0.0 for value in found.values())
            found["computed"] = max(0.0, whole - served)
        columns.append(found | {"all": whole})
    now, ever = columns
    for name in ever:
        if name == "total" and ever[name] is None:
            continue
        shown = [_whole(now.get(name)), _share(now.get(name), now["all"])]
        shown += [_whole(ever[name]), _share(ever[name], ever["all"])]
        title = "cached" if name == "total" else name
        rows.append((f"  {title}", shown[0], shown[1], shown[2], shown[3]))
    return _table(rows)


def _tiers(reading: Reading) -> str:
    """A line for each external tier that has counted something."""
    heads = "tier usable held-back hits look-ups tokens/s load/s offload/s stalled"
    rows: list[Sequence[str]] = [heads.split()]
    for store in reading.page.stores():
        usable = reading.total("sglang_qsa_tier_usable", store=store)
        held = reading.total("sglang_qsa_quarantined_loads", store=store)
        looked_up = "sglang_qsa_lookups_total"
        hits = reading.total(looked_up, store=store, result="hit")
        moved = "sglang_qsa_transfer_bytes_total"
        rows.append(
            (
                f"  {store}",
                ABSENT if usable is None else "yes" if usable else "NO",
                _whole(held),
                _whole(hits),
                _whole(reading.total(looked_up, store=store)),
                _whole(reading.rate("sglang_qsa_loaded_tokens_total", store=store)),
                _bytes(reading.rate(moved, store=store, direction="load")),
                _bytes(reading.rate(moved, store=store, direction="offload")),
                _seconds(reading.total("sglang_qsa_stall_seconds_total", store=store)),
            )
        )
    return _table(rows) if len(rows) > 1 else "tier           none"


def _host(reading: Reading) -> str:
    """HiCache's own counters, which the plugin's host records go through."""
    return _fields(
        "host memory",
        ("load/s", _bytes(reading.rate("sglang:load_back_bytes_total"))),
        ("offload/s", _bytes(reading.rate("sglang:hicache_backup_bytes_total"))),
    )


def _store(reading: Reading) -> str:
    directions = ("read", "written", "evicted")
    moved = "sglang_qsa_store_bytes_total"
    aside = reading.total("sglang_qsa_store_quarantined_total")
    return _fields(
        "record store",
        *((f"{d}/s", _bytes(reading.rate(moved, direction=d))) for d in directions),
        ("quarantined", _whole(aside)),
    )


def _counts(reading: Reading) -> str:
    """Counters by result, as they are since the start."""
    shown: tuple[tuple[str, str, str], ...] = (
        ("boundaries", "sglang_qsa_checkpoints_total", "result"),
        ("admissions", "sglang_qsa_admissions_total", "verdict"),
        ("loads", "sglang_qsa_loads_total", "result"),
        ("stores", "sglang_qsa_stores_total", "result"),
        ("store puts", "sglang_qsa_store_puts_total", "result"),
        ("store finds", "sglang_qsa_store_lookups_total", "result"),
    )
    lines = []
    for title, name, label in shown:
        values = sorted({s.labels[label] for s in reading.page.find(name)})
        found = [(v, _whole(reading.total(name, **{label: v}))) for v in values]
        lines.append(_fields(title, *found) if found else f"{title:<15}{ABSENT}")
    return "\n".join(lines)


def _fields(title: str, *fields: tuple[str, str]) -> str:
    return f"{title:<15}" + "   ".join(f"{name} {value}" for name, value in fields)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(max(widths[0], 13)), *cells]))
    return "\n".join(lines)


def _or_absent(show: Callable[[float], str]) -> Callable[[Number], str]:
    return lambda value: ABSENT if value is None else show(value)


def _scaled(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


_whole = _or_absent(lambda value: f"{value:,.0f}")
_seconds = _or_absent(lambda value: f"{value:,.2f} s")
_bytes = _or_absent(_scaled)


def _share(part: Number, whole: Number) -> str:
    return f"{100 * part / whole:.1f} %" if part is not None and whole else ABSENT
