"""What calls of the record store cost the thread that makes them, in microseconds.

`submit_put` and `submit_get` of a prompt of 512 pages, until the future is there, and
looking prompts up that are there, half there, or not. The disk is idle meanwhile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_qsa.layout import Layout, build_layout
from sglang_qsa.tiers.store.directory import DirectoryStore, Read
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.writer import Page, Stored

SUBMITTED_PAGES, SUBMITTED_TIMES = 512, 200
LOOKED_UP_TOKENS, LOOKED_UP_TIMES = (1_024, 8_192, 32_768, 131_072), 200


def measure(folder: Path, layout: Layout) -> dict[str, Any]:
    """Both tables, with stores below `folder` that are removed again."""
    return {
        "submit_us": _submit(folder / "submit", layout),
        "lookup_us": _look_up(folder / "lookup", layout),
    }


def _submit(root: Path, layout: Layout) -> dict[str, dict[str, float]]:
    """Microseconds in the caller's thread, until the future is there."""
    store = DirectoryStore(root, layout)
    page, state = bytearray(layout.page_bytes), bytearray(layout.checkpoint_bytes)
    keys = [f"{number:016x}" for number in range(SUBMITTED_PAGES)]
    pages = [Page(key, None) for key in keys]  # nothing has to be written
    reads = [Read(Kind.PAGE, key, page) for key in keys]
    calls: dict[str, Callable[[], Any]] = {
        "submit_put": lambda: store.submit_put(keys[-1], state, pages),
        "submit_get": lambda: store.submit_get(reads),
    }
    measured = {}
    for name, call in calls.items():
        times = []
        for _ in range(SUBMITTED_TIMES):
            start = time.perf_counter()
            future = call()
            times.append(time.perf_counter() - start)
            future.result()
        measured[name] = _in_us(times)
    store.close()
    shutil.rmtree(root)
    return measured


def _look_up(root: Path, layout: Layout) -> dict[str, dict[str, dict[str, float]]]:
    """Microseconds by tokens of the prompt, and by how much of it is there.

    No record is read, so that those of this store are small.
    """
    layout = build_layout(
        dataclasses.replace(
            layout.geometry, kv_layers=(0,), head_dim=8, index_dim=8, gdn_layers=(1,)
        )
    )
    store = DirectoryStore(root, layout, sync=Sync.NONE)
    page, state = bytearray(layout.page_bytes), bytearray(layout.checkpoint_bytes)
    measured = {}
    for tokens in LOOKED_UP_TOKENS:
        pages = tokens // layout.geometry.page_tokens
        prompt = _chain(f"{tokens}", pages)
        stored = store.put(prompt[-1], state, [Page(key, page) for key in prompt])
        assert stored is Stored.WRITTEN
        half = pages // 2
        middle = prompt[half - 1]
        pages_before = [Page(key, page) for key in prompt[:half]]
        assert store.put(middle, state, pages_before) is Stored.WRITTEN
        prompts = {
            "all": (prompt, pages),
            "half": ([*prompt[:half], *_chain("half", pages - half)], half),
            "nothing": (_chain("nothing", pages), 0),
        }
        measured[f"{tokens}"] = {
            name: _in_us([_timed(store, *each) for _ in range(LOOKED_UP_TIMES)])
            for name, each in prompts.items()
        }
    store.close()
    shutil.rmtree(root)
    return measured


def _chain(before: str, pages: int) -> list[str]:
    """Keys of pages, each made from the last, as SGLang's are."""
    keys = [before]
    for _ in range(pages):
        keys.append(hashlib.sha256(keys[-1].encode()).hexdigest())
    return keys[1:]


def _timed(store: DirectoryStore, keys: Sequence[str], found: int) -> float:
    fresh = [key.encode().decode() for key in keys]  # as those of every request are
    start = time.perf_counter()
    pages = store.longest_prefix(fresh)
    seconds = time.perf_counter() - start
    assert pages == found
    return seconds


def _in_us(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median": statistics.median(seconds) * 1e6,
        "p99": statistics.quantiles(seconds, n=100)[-1] * 1e6,
    }


def tables(result: dict[str, Any]) -> list[str]:
    """What `measure` found, as lines of Markdown."""
    lines = [
        f"In the caller's thread, {SUBMITTED_PAGES} pages and a checkpoint:",
        "",
        "| call | median µs | p99 µs |",
        "|---|---:|---:|",
    ]
    for name, times in result["submit_us"].items():
        lines.append(f"| {name} | {times['median']:.0f} | {times['p99']:.0f} |")
    lines += [
        "",
        "Looking a prompt up, in the caller's thread, median (p99) in µs:",
        "",
        "| tokens | all of it is there | half of it | nothing |",
        "|---:|---:|---:|---:|",
    ]
    for tokens, found in result["lookup_us"].items():
        cells = [f"{one['median']:.0f} ({one['p99']:.0f})" for one in found.values()]
        lines.append(f"| {int(tokens):,} | {' | '.join(cells)} |")
    return lines
