"""Throughput of the record store against a plain O_DIRECT copy of the same files.

    python -m benchmarks.store_io --dir DIR [--checkpoints 4] [--pages 128] [--out DIR]

Both move records of the real model between memory and files of `DIR`, with as many
threads, in the same run, in turns; the copy has no header, checksum, rename or commit.
Both sync the contents they wrote. Then what the scheduler's thread spends, see
`benchmarks.store_calls`; `--only-calls` measures nothing else, in seconds. Writes
`store_io.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine, store_calls
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout
from sglang_qsa.tiers.store.directory import DirectoryStore, Read
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.record import Kind, Outcome, file_bytes
from sglang_qsa.tiers.store.writer import Page, Stored

CONFIG_FILE = Path(__file__).parents[1] / "tests" / "data" / "qwen3.8-flash-next.json"
IN_FLIGHT = 8
CHUNK = 4 << 20
"""Bytes of one call of the copy."""
ROUNDS = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.store_io", description=__doc__
    )
    parser.add_argument(
        "--dir", type=Path, required=True, help="on the disk to measure"
    )
    parser.add_argument("--checkpoints", type=int, default=4)
    parser.add_argument("--pages", type=int, default=128, help="per checkpoint")
    parser.add_argument("--only-calls", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    layout = build(read_model_config(CONFIG_FILE), ServerFacts(), origin="config")
    result = {
        "machine": machine.describe(),
        "in_flight": IN_FLIGHT,
        "checkpoints": options.checkpoints,
        "pages": options.pages,
        "record_bytes": options.checkpoints
        * (layout.checkpoint_bytes + options.pages * layout.page_bytes),
        "gb_per_s": None if options.only_calls else _throughput(options, layout),
        **store_calls.measure(options.dir, layout),
    }
    table = as_markdown(result)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "store_io.json").write_text(json.dumps(result, indent=2) + "\n")
        (options.out / "store_io.md").write_text(table)
    print(table)
    return 0


def _throughput(options: argparse.Namespace, layout: Layout) -> dict[str, Any]:
    """Median GB/s of record bytes, and the range of `ROUNDS`."""
    prompts = [
        ([f"{n:08x}{page:08x}" for page in range(options.pages)], f"{n:016x}")
        for n in range(options.checkpoints)
    ]
    buffers = {
        key: mmap.mmap(-1, file_bytes(size))
        for pages, state in prompts
        for key, size in [
            *((page, layout.page_bytes) for page in pages),
            (f"state{state}", layout.checkpoint_bytes),
        ]
    }
    for buffer in buffers.values():
        buffer.write(os.urandom(4096) * (len(buffer) // 4096))
    moved_bytes = options.checkpoints * (
        layout.checkpoint_bytes + options.pages * layout.page_bytes
    )
    seconds: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        root = options.dir / f"round{number}"
        copy = _Copy(root / "copy", buffers)
        store = _Store(root / "store", layout, prompts, buffers)
        steps: list[tuple[str, Callable[[], None]]] = [
            ("copy write", copy.write),
            ("store write", store.write),
            ("copy read", copy.read),
            ("store read", store.read),
        ]
        if number % 2:
            steps = [steps[1], steps[0], steps[3], steps[2]]
        for name, step in steps:
            if name.endswith("read"):
                for buffer in buffers.values():
                    buffer[:] = bytes(len(buffer))
            start = time.perf_counter()
            step()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
        store.close()
        shutil.rmtree(root)
    return {
        name: {
            "median": moved_bytes / statistics.median(times) / 1e9,
            "all": [moved_bytes / each / 1e9 for each in times],
        }
        for name, times in seconds.items()
    }


class _Copy:
    """Files of the same lengths, written and read with as little as possible."""

    def __init__(self, root: Path, buffers: dict[str, mmap.mmap]) -> None:
        root.mkdir(parents=True)
        self._root = root
        self._buffers = buffers

    def write(self) -> None:
        self._each(os.O_WRONLY | os.O_CREAT, os.pwrite, sync=True)

    def read(self) -> None:
        def read(fd: int, into: memoryview, offset: int) -> int:
            return os.preadv(fd, [into], offset)

        self._each(os.O_RDONLY, read, sync=False)

    def _each(self, flags: int, move: Callable[..., int], *, sync: bool) -> None:
        def one(name: str) -> None:
            buffer = memoryview(self._buffers[name])
            fd = os.open(self._root / name, flags | os.O_DIRECT, 0o666)
            for start in range(0, len(buffer), CHUNK):
                part = buffer[start : start + CHUNK]
                assert move(fd, part, start) == len(part)
            if sync:
                os.fdatasync(fd)
            os.close(fd)

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(one, self._buffers))


class _Store:
    """The same records through the store, each prompt a put and a get."""

    def __init__(
        self,
        root: Path,
        layout: Layout,
        prompts: list[tuple[list[str], str]],
        buffers: dict[str, mmap.mmap],
    ) -> None:
        self._store = DirectoryStore(root, layout, sync=Sync.DATA, in_flight=IN_FLIGHT)
        self._prompts = prompts
        self._records = {
            key: memoryview(buffer)[
                : layout.checkpoint_bytes
                if key.startswith("state")
                else layout.page_bytes
            ]
            for key, buffer in buffers.items()
        }

    def write(self) -> None:
        puts = [
            self._store.submit_put(
                state,
                self._records[f"state{state}"],
                [Page(page, self._records[page]) for page in pages],
            )
            for pages, state in self._prompts
        ]
        assert {put.result() for put in puts} == {Stored.WRITTEN}

    def read(self) -> None:
        gets = [
            self._store.submit_get(
                [
                    Read(Kind.CHECKPOINT, state, self._records[f"state{state}"]),
                    *(Read(Kind.PAGE, page, self._records[page]) for page in pages),
                ]
            )
            for pages, state in self._prompts
        ]
        assert {outcome for get in gets for outcome in get.result()} == {Outcome.HIT}

    def close(self) -> None:
        self._store.close()


def as_markdown(result: dict[str, Any]) -> str:
    head = result["machine"]
    lines = [
        "# Record store on this machine's disk",
        "",
        f"{head['cpu']}, {head['cores']} cores, Python {head['python']}, commit "
        f"{head['commit'][:12]}.",
        *(_throughput_table(result) if result["gb_per_s"] else ()),
        "",
        *store_calls.tables(result),
    ]
    return "\n".join(lines) + "\n"


def _throughput_table(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{result['checkpoints']} checkpoints with "
        f"{result['pages']} pages each, {result['record_bytes'] / 1e9:.2f} GB of "
        f"records, {result['in_flight']} in flight; median of {ROUNDS} rounds. The "
        "copy moves files of the same lengths with O_DIRECT and as many threads.",
        "",
        "| | copy GB/s | store GB/s | ratio |",
        "|---|---:|---:|---:|",
    ]
    for step in ("write", "read"):
        copy, store = (
            result["gb_per_s"][f"{who} {step}"]["median"] for who in ("copy", "store")
        )
        lines.append(f"| {step} | {copy:.2f} | {store:.2f} | {store / copy:.0%} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
