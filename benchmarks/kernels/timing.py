"""How kernel benchmarks measure: CUDA-graph replays, interleaved, on cold inputs.

Each contender becomes one CUDA graph that calls it once per input set; together the
sets exceed the L2 cache, so a replay never finds its own inputs there. All contenders
of a shape are replayed in turn, the first one moving on by one each round, so that
clocks and neighbours hit them alike. A figure is the median over rounds of a replay's
time between two events, divided by its number of calls.

Figures may only be printed after `require_green`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine

ROOT = Path(__file__).parents[2]
COLD_FACTOR = 3
"""Input sets of one replay hold at least this many times the L2 cache."""
MAX_SETS = 512
COPY_BYTES = 1 << 32
NOT_INSTALLED = "not installed"

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of one call: median, tenth and ninetieth percentile over rounds."""

    median_us: float
    p10_us: float
    p90_us: float
    rounds: int
    calls_per_round: int


def require_green(test_file: str, *, expression: str = "") -> str:
    """Run an op's test on this machine and end the benchmark if it is not green.

    Args:
        test_file: path below the repository root, such as
            `tests/kernels/test_score.py`.
        expression: pytest's `-k`.
    Returns:
        pytest's last line, for the result file.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["--confcutdir", str(Path(test_file).parent), test_file]
    command += ["-k", expression] if expression else []
    paths = [str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{test_file} is red: nothing is measured")
    return done.stdout.strip().splitlines()[-1]


def require(correct: bool, what: str) -> None:
    """End the benchmark if a contender's output at a measured shape is wrong."""
    if not correct:
        sys.exit(f"{what}: wrong output, nothing is printed")


def input_sets(set_bytes: int, *, available: int = MAX_SETS) -> int:
    """Input sets to rotate through so that together they exceed the L2 cache.

    Args:
        set_bytes: what one call reads from device memory.
        available: how many different sets there can be.
    """
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    wanted = -(-COLD_FACTOR * cache_bytes // max(set_bytes, 1))
    return max(1, min(wanted, available, MAX_SETS))


def interleaved(
    contenders: Mapping[str, Sequence[Call]], *, rounds: int = 50
) -> dict[str, Timing]:
    """Time of one call of each contender, all measured in the same rounds.

    Args:
        contenders: name to its calls, one per input set. A call must be capturable:
            no synchronisation, no host read of device data.
        rounds: replays of each contender, after one that is not counted.
    """
    graphs = {name: _captured(calls) for name, calls in contenders.items()}
    names = list(graphs)
    spans: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]]
    spans = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start, end = _event(), _event()
            start.record()
            graphs[name].replay()
            end.record()
            spans[name].append((start, end))
        torch.cuda.synchronize()
    return {
        name: _timing(
            [start.elapsed_time(end) for start, end in spans[name][1:]],
            len(contenders[name]),
        )
        for name in names
    }


def copy_rate() -> float:
    """Rate of a large device copy in GB/s, bytes read plus bytes written.

    The better of the driver's copy and a kernel that copies words: on an H200 either
    may be far below the other.
    """
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    source = source.view(torch.int32)
    target = torch.empty_like(source)
    contenders: dict[str, list[Call]] = {
        "driver": [lambda: target.copy_(source)],
        "kernel": [lambda: torch.bitwise_not(source, out=target)],
    }
    timings = interleaved(contenders, rounds=20)
    fastest_us = min(timing.median_us for timing in timings.values())
    return 2 * COPY_BYTES / fastest_us / 1e3


def header() -> dict[str, Any]:
    """Machine, versions, commit and method, for the head of a result file."""
    properties = torch.cuda.get_device_properties(0)
    return {
        **machine.describe(),
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "l2_cache_bytes": properties.L2_cache_size,
        "method": "median of CUDA-graph replays, contenders interleaved, inputs "
        f"rotated over at least {COLD_FACTOR} x L2 where memory allows",
    }


def version_of(package: str) -> str:
    """Version of a baseline's package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def median(times: Mapping[str, Mapping[str, float]], name: str) -> str:
    """A contender's median in µs for a table, which says so where it did not run."""
    return f"{times[name]['median_us']:.1f}" if name in times else NOT_INSTALLED


def ratio(times: Mapping[str, Mapping[str, float]], name: str) -> str:
    """How many times ours a contender takes, or nothing where it did not run."""
    if name not in times:
        return ""
    return f"{times[name]['median_us'] / times['ours']['median_us']:.2f}"


def publish(out: Path | None, result: Mapping[str, Any], table: str) -> None:
    """Print the table; with `out`, a path without suffix, write result and table."""
    if out is not None:
        text = json.dumps(result, indent=1) + "\n"
        out.with_suffix(".json").write_text(text, encoding="utf-8")
        out.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One graph of all calls. The first call runs before: it may compile."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _timing(replays_ms: Sequence[float], calls: int) -> Timing:
    each_us = [1e3 * replay / calls for replay in replays_ms]
    tenths = statistics.quantiles(each_us, n=10)
    return Timing(
        median_us=statistics.median(each_us),
        p10_us=tenths[0],
        p90_us=tenths[-1],
        rounds=len(each_us),
        calls_per_round=calls,
    )
