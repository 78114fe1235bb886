"""The linker over real pools on a GPU, with no model: times, and every byte compared.

    python -m benchmarks.linker_io --out DIR --store DIR [--prompt-tokens N ...]

Each round stores a prompt that the store does not have, as one node of the tree, and
loads it into other pages and another slot that hold something else. What the
scheduler's thread spends is measured apart: on handing the node over, on looking up a
prompt that is there and one that is not, and on handing the load over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.host_pools import (
    DevicePools,
    is_page_plane,
    publish_settings,
    real_layout,
    real_pools,
)
from sglang_qsa.demo.story import anchor_tokens
from sglang_qsa.hooks import active
from sglang_qsa.layout import Layout

_SLOTS = 4
_ON_THE_SCHEDULER = ("submit_ms", "lookup_ms", "miss_ms", "load_submit_ms")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.linker_io")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[8_204, 32_780])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", default="")
    options = parser.parse_args(argv)
    publish_settings()
    layout = real_layout()
    active.identify(layout)
    most = max(anchor_tokens(tokens) for tokens in options.prompt_tokens)
    run = _Run(layout, 2 * most // layout.geometry.page_tokens, options.store)
    result: dict[str, Any] = {
        "benchmark": "linker_io",
        "machine": machine.describe(),
        "note": options.note,
        "layout_id": layout.layout_id,
        "prompts": [
            run.measure(tokens, options.repeats) for tokens in options.prompt_tokens
        ],
    }
    result["ok"] = all(prompt["equal"] for prompt in result["prompts"])
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2) + "\n"
    (options.out / "linker_io.json").write_text(text)
    (options.out / "linker_io.md").write_text(as_markdown(result))
    print(as_markdown(result))
    return 0 if result["ok"] else 1


class _Run:
    def __init__(self, layout: Layout, pages: int, store: Path) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        from sglang_qsa.tiers.linker.linker import RecordLinker

        self._layout = layout
        self._page_tokens = layout.geometry.page_tokens
        self._pools: DevicePools = real_pools(layout, pages=pages, slots=_SLOTS)
        self._device = torch.device(self._pools.kv.device)
        module = torch.get_device_module(self._device)
        self._synchronize = module.synchronize
        self._linker = RecordLinker(
            None,
            CacheInitParams(
                disable=False,
                req_to_token_pool=self._pools.requests,
                token_to_kv_pool_allocator=self._pools.allocator,
                page_size=self._page_tokens,
                enable_mamba_extra_buffer=True,
            ),
            extra_config={"directory": str(store)},
            forward_stream=module.Stream(),
        )
        self._keys = 0

    def measure(self, prompt_tokens: int, repeats: int) -> dict[str, Any]:
        pages = anchor_tokens(prompt_tokens) // self._page_tokens
        rounds = [self._round(pages) for _ in range(repeats)]
        record_bytes = pages * self._layout.page_bytes + self._layout.checkpoint_bytes
        return {
            "prompt_tokens": prompt_tokens,
            "pages": pages,
            "record_bytes": record_bytes,
            "equal": all(one["equal"] for one in rounds),
            "rounds": rounds,
        }

    def _round(self, pages: int) -> dict[str, Any]:
        source = torch.randperm(2 * pages)[:pages] + 1
        rest = torch.ones(self._pools.pages + 1, dtype=torch.bool)
        rest[0] = rest[source] = False
        target = rest.nonzero().flatten()[:pages]
        self._fill()
        wanted = self._digest(source, 1)
        keys = [f"{self._keys + page:064x}" for page in range(pages)]
        self._keys += pages
        submit_s, store_s = self._store(keys, source)
        lookup_s = self._look_up(keys, pages)
        miss_s = self._look_up([f"f{page:063x}" for page in range(pages)], 0)
        load_submit_s, load_s = self._load(keys, target)
        return {
            "submit_ms": round(submit_s * 1e3, 4),
            "store_s": round(store_s, 4),
            "lookup_ms": round(lookup_s * 1e3, 4),
            "miss_ms": round(miss_s * 1e3, 4),
            "load_submit_ms": round(load_submit_s * 1e3, 4),
            "load_s": round(load_s, 4),
            "equal": self._digest(target, 2) == wanted,
        }

    def _store(self, keys: list[str], pages: torch.Tensor) -> tuple[float, float]:
        from sglang_qsa.tiers.linker.tree import Path as TreePath

        slots, transfers = self._transfers(keys, pages, 1)
        self._synchronize()
        started = time.perf_counter()
        self._linker.announce(TreePath(keys, slots))
        assert self._linker.offload(transfers)
        submitted = time.perf_counter()
        while not self._linker.num_completed_offloads():
            time.sleep(0.001)
        assert self._linker.pop_completed_offload()
        return submitted - started, time.perf_counter() - started

    def _look_up(self, keys: list[str], found: int) -> float:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        transfer = PoolTransfer(PoolName.KV, keys=[k.encode().decode() for k in keys])
        started = time.perf_counter()
        pages = self._linker.lookup("a", [transfer])
        seconds = time.perf_counter() - started
        assert pages == ([found] if found else [])
        return seconds

    def _load(self, keys: list[str], pages: torch.Tensor) -> tuple[float, float]:
        _, transfers = self._transfers(keys, pages, 2)
        self._synchronize()
        started = time.perf_counter()
        assert self._linker.load("a", transfers)
        index = self._linker.start_layer_wise_loading()
        submitted = time.perf_counter()
        assert self._linker.finish_layer_wise_loading(index)
        return submitted - started, time.perf_counter() - started

    def _transfers(
        self, keys: list[str], pages: torch.Tensor, slot: int
    ) -> tuple[torch.Tensor, list[Any]]:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        starts = pages.to(self._device) * self._page_tokens
        within = torch.arange(self._page_tokens, device=self._device)
        slots = (starts[:, None] + within).flatten()
        state = torch.tensor([slot], device=self._device)
        return slots, [
            PoolTransfer(PoolName.KV, keys=keys, device_indices=slots),
            PoolTransfer(PoolName.MAMBA, keys=keys[-1:], device_indices=state),
        ]

    def _fill(self) -> None:
        for layers in self._pools.records().values():
            for layer in layers:
                layer.random_(0, 256)

    def _digest(self, pages: torch.Tensor, slot: int) -> dict[str, list[bytes]]:
        """The bytes of every plane and layer, as a keyed sum of their words."""
        found: dict[str, list[bytes]] = {}
        for name, layers in self._pools.records().items():
            rows = pages if is_page_plane(name) else torch.tensor([slot])
            found[name] = []
            for layer in layers:
                words = layer[rows.to(layer.device)].contiguous().view(torch.int64)
                key = torch.arange(words.numel(), device=words.device).reshape(
                    words.shape
                )
                total = ((words ^ key) * (2 * key + 1)).sum()
                found[name].append(total.cpu().numpy().tobytes())
        return found


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a table, with what it was measured on."""
    facts = result["machine"]
    lines = [
        "# Device pages to disk and back, by the linker",
        "",
        f"{facts['gpu']}, {facts['cores']} cores, commit {facts['commit'][:12]}. "
        "Real shapes, medians; every byte compared.",
        "",
        "The scheduler's thread hands nodes and loads over and looks prompts up: ms.",
        "",
        "| tokens | MB | store, s | load, s | bytes | node | hit | miss | load |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for prompt in result["prompts"]:
        median = {
            name: statistics.median(one[name] for one in prompt["rounds"])
            for name in ("store_s", "load_s", *_ON_THE_SCHEDULER)
        }
        lines.append(
            f"| {prompt['prompt_tokens']:,} | {prompt['record_bytes'] / 1e6:,.1f} "
            f"| {median['store_s']:.3f} | {median['load_s']:.3f} "
            f"| {'equal' if prompt['equal'] else 'differ'} | "
            + " | ".join(f"{median[name]:.3f}" for name in _ON_THE_SCHEDULER)
            + " |"
        )
    return "\n".join([*lines, "", result["note"]]).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
