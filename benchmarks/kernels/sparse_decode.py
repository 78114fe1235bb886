"""Measure `sparse_decode` against upstream's gather, FlashInfer and torch.

python -m benchmarks.kernels.sparse_decode --out benchmarks/results
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import timing
from benchmarks.kernels.gather_attention import GatherAttention, torch_attention
from benchmarks.kernels.paged_attention import PagedAttention, library
from sglang_qsa_kernels.sparse_decode import sparse_decode
from sglang_qsa_kernels.sparse_decode.cases import MEASURED, Case, Inputs, inputs
from sglang_qsa_kernels.sparse_decode.reference import sparse_decode_reference

TEST = "tests/kernels/test_sparse_decode.py"
NAME = "kernels_sparse_decode_h200_202611"
DEVICE = torch.device("cuda")
COLD_REQUESTS = 8
"""Requests of all input sets together: 0.5 GB of K and V at 32,768 tokens in bf16."""
CHECKED_ROWS = 64
TOLERANCE = 4e-3
UPSTREAM, FLASHINFER = "upstream gather + FA2", "flashinfer paged"
COLUMNS = ("ours", UPSTREAM, FLASHINFER, "torch gather + sdpa")


def measure(case: Case) -> dict[str, Any]:
    """Times and errors of one shape. Each input set has requests of its own."""
    count = max(2, COLD_REQUESTS // case.batch)
    whole = inputs(dataclasses.replace(case, batch=count * case.batch), DEVICE)
    sets = [_part(whole, at, case.batch * case.rows) for at in range(count)]
    timing.require(_error(call(sets[0]), sets[0]) < TOLERANCE, case.name)
    times = timing.interleaved(contenders(sets), rounds=30)
    selected = int((sets[0].tokens >= 0).sum())
    element_bytes = sets[0].k_cache.element_size()
    return {
        "case": case.name,
        "bytes": 2 * selected * case.kv_heads * case.dim * element_bytes,
        "times": {name: asdict(time) for name, time in times.items()},
        "errors": errors(case),
        "flashinfer_plan_us": plan_us(sets[0]),
    }


def plan_us(given: Inputs) -> float | None:
    """Host time of FlashInfer's plan, which its times leave out."""
    plain = dataclasses.replace(given, k_scales=None, v_scales=None)
    return None if library() is None else PagedAttention(plain).plan_us()


def contenders(sets: list[Inputs]) -> dict[str, list[timing.Call]]:
    """Ours and what does the same; the others know no scales and leave them out."""
    calls: dict[str, list[timing.Call]] = {"ours": [partial(call, s) for s in sets]}
    plain = [dataclasses.replace(s, k_scales=None, v_scales=None) for s in sets]
    gathers = [GatherAttention(given) for given in plain]
    if gathers[0].name:
        calls[gathers[0].name] = [gather.run for gather in gathers]
    if library() is not None:
        calls[FLASHINFER] = [PagedAttention(given).run for given in plain]
    calls["torch gather + sdpa"] = [partial(torch_attention, s) for s in plain]
    return calls


def errors(case: Case) -> dict[str, float]:
    """Relative errors against fp64, of all on the same pool: an fp8 one has no scales,
    because upstream's has none."""
    kind = "bf16" if case.format == "bf16" else "fp8 plain"
    batch = min(case.batch, CHECKED_ROWS // case.rows)
    given = inputs(dataclasses.replace(case, batch=batch, format=kind), DEVICE, seed=1)
    found = {}
    for name, run in contenders([given]).items():
        output = run[0]()
        assert isinstance(output, torch.Tensor)
        found[name] = _error(output, given)
    return found


def call(given: Inputs) -> torch.Tensor:
    return sparse_decode(
        *given.positional,
        softmax_scale=given.softmax_scale,
        k_scales=given.k_scales,
        v_scales=given.v_scales,
    )


def _part(whole: Inputs, at: int, rows: int) -> Inputs:
    """Input set `at`: its rows, over the pool and table of all."""
    part = slice(at * rows, (at + 1) * rows)
    return dataclasses.replace(
        whole,
        q=whole.q[part],
        tokens=whole.tokens[part],
        row_requests=whole.row_requests[part],
        lengths=whole.lengths[part],
    )


def _error(found: torch.Tensor, given: Inputs) -> float:
    """Relative error against fp64 over the first rows."""
    first = _part(given, 0, min(CHECKED_ROWS, len(given.q)))
    wanted = sparse_decode_reference(
        *first.positional,
        softmax_scale=first.softmax_scale,
        k_scales=first.k_scales,
        v_scales=first.v_scales,
        dtype=torch.float64,
    )
    found = found[: len(wanted)].double()
    return float((found - wanted).norm() / wanted.norm())


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    head, times = result["header"], result["times"]
    lines = [
        "# Attention over 2,051 selected tokens, 24 query and 2 KV heads of 256",
        "",
        f"{head['gpu']}, torch {head['versions']['torch']}, triton "
        f"{head['versions']['triton']}, sglang {head['versions']['sglang']}, "
        f"flashinfer {result['flashinfer']}, commit {head['commit'][:12]}. "
        f"{head['method']}. Test: {result['test']}.",
        "",
        "Contexts of 32,768 tokens; each row has a random selection of its own, so "
        "verify rows share almost nothing. Upstream: SGLang's count, prefix sum and "
        "gather kernels, then the FlashAttention 2 that torch carries (the package "
        "flash-attn is not installed). FlashInfer: its paged decode on tensor cores, "
        "each selected slot a page, each row a request; its list of slots is made "
        f"before, and so is its plan{_plan_cost(times)}. Upstream's and FlashInfer's "
        "fp8 pools have no scale per token, and upstream's is widened to bf16 by the "
        "gather; fp8 errors are those on such a pool, times of ours include the "
        "scales. Rate: bytes of selected K and V over ours; the copy rate of the run "
        f"is {result['copy_gb_per_s']:,.0f} GB/s.",
        "",
        "| requests x rows | "
        + " | ".join(f"{name}, µs" for name in COLUMNS)
        + " | ratio to upstream | ratio to flashinfer | GB/s | "
        + " | ".join(f"error, {name}" for name in COLUMNS)
        + " |",
        "|---|" + "---:|" * (2 * len(COLUMNS) + 3),
    ]
    lines += [_line(row) for row in times]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    times, errors = row["times"], row["errors"]
    rate = row["bytes"] / times["ours"]["median_us"] / 1e3
    cells = [row["case"], *(timing.median(times, name) for name in COLUMNS)]
    cells += [timing.ratio(times, UPSTREAM), timing.ratio(times, FLASHINFER)]
    cells += [f"{rate:,.0f}"]
    cells += [
        f"{errors[name]:.2e}" if name in errors else timing.NOT_INSTALLED
        for name in COLUMNS
    ]
    return "| " + " | ".join(cells) + " |"


def _plan_cost(times: list[dict[str, Any]]) -> str:
    costs = [row["flashinfer_plan_us"] for row in times]
    if None in costs:
        return ""
    return f" ({min(costs):.0f} to {max(costs):.0f} µs of the host for each step)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    test = timing.require_green(TEST)
    result = {
        "header": timing.header(),
        "flashinfer": timing.version_of("flashinfer-python"),
        "test": test,
        "copy_gb_per_s": timing.copy_rate(),
        "times": [measure(case) for case in MEASURED],
    }
    timing.publish(out / NAME, result, table(result))


if __name__ == "__main__":
    main()
