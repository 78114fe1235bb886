"""Decode steps of one build of SGLang over contexts that were never prefilled.

    python -m benchmarks.decode_loop OUT.json BATCHES CONTEXTS -- launch flags

One process, run by `benchmarks.decode_step`. K, V and index keys are random and the
same in every process; each request is 64 prompt tokens, stretched to its context by
giving it pages. Steps are timed with CUDA events after a warm-up.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 64
WARM_UP, STEPS = 4, 24


def main(argv: Sequence[str]) -> int:
    out, batches, contexts, *flags = argv
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    runner = _load(flags)
    _fill(runner.torch_runner)
    rows = []
    with torch.no_grad():
        for context in map(int, contexts.split(",")):
            for batch in map(int, batches.split(",")):
                runner.clear()
                rows.append(_decode(runner, batch, context))
                print(f"{context} tokens, batch {batch}: {rows[-1]['ms']} ms")
    Path(out).write_text(json.dumps(rows))
    return 0


def _load(flags: Sequence[str]) -> Any:
    """A model runner with its CUDA graphs, as SGLang's own benchmark makes one."""
    from sglang.benchmark import one_batch
    from sglang.srt.entrypoints.engine import _set_envs_and_config
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, prepare_server_args

    server_args = prepare_server_args(list(flags))
    server_args.resolve_once()
    _set_envs_and_config(server_args)
    rank = spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
    one_batch._init_process_global_configs()
    ports = PortArgs.init_new(server_args)
    return one_batch.load_model(server_args, ports, 0, 0)[0]


def _fill(runner: Any) -> None:
    """Random pools: what a page holds decides which blocks are selected."""
    import torch

    generator = torch.Generator(runner.device).manual_seed(7)
    pool = runner.token_to_kv_pool
    full = pool.full_kv_pool
    keys = pool.qsa_compressed_k_buffer_pool
    for tensor in (*full.k_buffer, *full.v_buffer, *keys):
        for part in tensor.flatten().split(1 << 28):
            part.normal_(generator=generator)


def _decode(runner: Any, batch: int, context: int) -> dict[str, Any]:
    import torch
    from sglang.benchmark.one_batch import prepare_synthetic_inputs_for_latency_test

    ids = torch.arange(batch * PROMPT_TOKENS).reshape(batch, -1) % 400 + 3
    reqs = prepare_synthetic_inputs_for_latency_test(batch, PROMPT_TOKENS, ids.tolist())
    tokens, _, state = runner.extend(reqs)
    _stretch(runner.torch_runner, state, context - PROMPT_TOKENS)
    outputs = []
    for _ in range(WARM_UP):
        tokens, _ = runner.decode(tokens, state)
        outputs.append(tokens.tolist())
    times = []
    for _ in range(STEPS):
        runner.synchronize()
        started = time.perf_counter()
        tokens, _ = runner.decode(tokens, state)
        runner.synchronize()
        times.append((time.perf_counter() - started) * 1000)
        outputs.append(tokens.tolist())
    return {
        "context": context,
        "batch": batch,
        "ms": round(statistics.median(times), 3),
        "outputs": outputs,
    }


def _stretch(runner: Any, state: Any, more: int) -> None:
    """Give every request `more` tokens, whose rows were never computed."""
    table = runner.req_to_token_pool.req_to_token
    for req, row in zip(state.reqs, state.req_pool_indices.tolist(), strict=True):
        slots = runner.token_to_kv_pool_allocator.alloc(more)
        end = PROMPT_TOKENS + more
        table[row, PROMPT_TOKENS:end] = slots.to(table.dtype)
        req.kv.kv_committed_len = req.kv.kv_allocated_len = end
        req.extend_end = req.prefix_len = end
    for name in ("seq_lens", "seq_lens_cpu", "orig_seq_lens"):
        setattr(state, name, getattr(state, name) + more)
    state.seq_lens_sum += more * len(state.reqs)


if __name__ == "__main__":
    code = main([part for part in sys.argv[1:] if part != "--"])
    sys.stdout.flush()
    # The distributed state of a benchmark process has nothing worth an orderly end.
    os._exit(code)
