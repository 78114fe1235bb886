"""A deployment of a few kilobytes, prompts of it, and the store's whole promise.

`check_promise` is what every fault case ends in: right bytes or a counted miss, and a
store that serves the next request.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from pathlib import Path
from typing import Any

from sglang_qsa.layout import DType, Geometry, Layout, build_layout
from sglang_qsa.tiers.store.directory import DirectoryStore, Read
from sglang_qsa.tiers.store.files import RecordFiles, Sync
from sglang_qsa.tiers.store.gc import Collected, Collector
from sglang_qsa.tiers.store.namespace import Namespace
from sglang_qsa.tiers.store.record import Kind, Outcome
from sglang_qsa.tiers.store.session import Session
from sglang_qsa.tiers.store.stats import Tally
from sglang_qsa.tiers.store.system import System
from sglang_qsa.tiers.store.writer import Page, Stored

GEOMETRY = Geometry(
    architecture="Small",
    weights_fingerprint="w",
    image_input=False,
    tp_size=1,
    page_tokens=64,
    compress_ratio=4,
    kv_layers=(0, 1),
    kv_heads=1,
    head_dim=8,
    kv_dtype=DType.BF16,
    kv_scales=False,
    index_heads=1,
    index_dim=8,
    index_dtype=DType.BF16,
    index_budget_tokens=64,
    draft_layers=0,
    gdn_layers=(2, 3, 4),
    gdn_value_heads=2,
    gdn_value_dim=8,
    gdn_key_dim=16,
    gdn_conv_channels=40,
    gdn_conv_window=3,
    ssm_dtype=DType.FP32,
    ssm_order=("value_head", "value_dim", "key_dim"),
    conv_dtype=DType.BF16,
    ple_layers=(2,),
    ple_channels=40,
    ple_window=9,
    ple_dtype=DType.BF16,
    ngram_tokens=2,
    ngram_eos_token_id=7,
)
LAYOUT = build_layout(GEOMETRY)


def layout_with(**changes: Any) -> Layout:
    return build_layout(dataclasses.replace(GEOMETRY, **changes))


OTHERS = {
    "dtype": layout_with(kv_dtype=DType.FP16),
    "tp": layout_with(tp_size=2),
    "draft": layout_with(draft_layers=1),
    "image": layout_with(image_input=True),
}
"""Deployments that differ from `LAYOUT` in one setting; all but `draft` have records
of the same lengths."""


def content(layout: Layout, kind: Kind, key: str) -> bytearray:
    """The one right payload of a record, made from its key."""
    size = layout.page_bytes if kind is Kind.PAGE else layout.checkpoint_bytes
    return bytearray(random.Random(f"{kind.name}{key}").randbytes(size))


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prefix by the keys of its pages; the boundary's key is its last page's."""

    pages: tuple[str, ...]

    @classmethod
    def of(cls, *words: str) -> Prompt:
        """One page a word, keys chained as SGLang does."""
        keys, last = [], ""
        for word in words:
            last = hashlib.sha256(f"{last}/{word}".encode()).hexdigest()
            keys.append(last)
        return cls(tuple(keys))

    @property
    def checkpoint(self) -> str:
        return self.pages[-1]

    @property
    def names(self) -> list[tuple[Kind, str]]:
        pages = [(Kind.PAGE, key) for key in self.pages]
        return [*pages, (Kind.CHECKPOINT, self.checkpoint)]


def open_store(root: Path, layout: Layout = LAYOUT, **options: Any) -> DirectoryStore:
    return DirectoryStore(root, layout, in_flight=2, **options)


def put(store: DirectoryStore, prompt: Prompt, layout: Layout = LAYOUT) -> Stored:
    return store.submit_put(
        prompt.checkpoint,
        content(layout, Kind.CHECKPOINT, prompt.checkpoint),
        [Page(key, content(layout, Kind.PAGE, key)) for key in prompt.pages],
    ).result(timeout=5)


def find(store: DirectoryStore, prompt: Prompt) -> int:
    """What a look-up finds that does not wait for the store's thread."""
    store.refresh()
    return store.longest_prefix(prompt.pages)


def get(
    store: DirectoryStore, prompt: Prompt, layout: Layout = LAYOUT
) -> dict[tuple[Kind, str], Outcome]:
    """Read a prefix into poisoned buffers; whatever is a hit has the right bytes."""
    right = {name: content(layout, *name) for name in prompt.names}
    buffers = {name: bytearray(b"\xa5" * len(right[name])) for name in prompt.names}
    reads = [Read(*name, buffers[name]) for name in prompt.names]
    outcomes = store.submit_get(reads).result(timeout=5)
    for name, outcome in zip(prompt.names, outcomes, strict=True):
        assert (buffers[name] == right[name]) or outcome is not Outcome.HIT, name
    return dict(zip(prompt.names, outcomes, strict=True))


def served(store: DirectoryStore, prompt: Prompt, layout: Layout = LAYOUT) -> int:
    """Pages of `prompt` that a server gets from the store, bytes compared."""
    pages = find(store, prompt)
    if pages == 0:
        return 0
    outcomes = get(store, Prompt(prompt.pages[:pages]), layout)
    return pages if set(outcomes.values()) == {Outcome.HIT} else 0


def collect(
    root: Path, *budget: int, layout: Layout = LAYOUT, system: System | None = None
) -> Collected:
    """What another process collects."""
    system = system or System()
    namespace = Namespace.of(root, layout, 0)
    session = Session(namespace, system)
    files = RecordFiles(namespace, session.name, system, Sync.NONE)
    try:
        return Collector(files, Tally()).collect(*budget)
    finally:
        files.close()
        session.close()


def misses(store: DirectoryStore) -> int:
    """Everything that was counted as not served."""
    lookups = ("shortened", "absent", "incomplete", "unreadable")
    return sum(store.tally.count("lookups", result) for result in lookups) + sum(
        store.tally.count("records", unit, outcome)
        for unit in ("page", "checkpoint", "commit", "intent")
        for outcome in Outcome
        if outcome is not Outcome.HIT
    )


def check_promise(
    store: DirectoryStore, prompts: list[Prompt], layout: Layout = LAYOUT
) -> None:
    """Each prompt is served right or is a counted miss, and can be stored again."""
    for prompt in prompts:
        before = misses(store)
        pages = served(store, prompt, layout)
        assert pages or misses(store) > before
        assert pages in {0, *boundaries(prompt, prompts)}
    for prompt in prompts:
        assert put(store, prompt, layout) in (Stored.WRITTEN, Stored.PRESENT)
    for prompt in prompts:
        if served(store, prompt, layout) != len(prompt.pages):
            # Its length was right, so the first read found out; the next put heals it.
            assert put(store, prompt, layout) is Stored.WRITTEN
            assert served(store, prompt, layout) == len(prompt.pages)


def boundaries(prompt: Prompt, prompts: list[Prompt]) -> set[int]:
    """Lengths of the prefixes of `prompt` that have a checkpoint of their own."""
    return {
        len(other.pages)
        for other in prompts
        if prompt.pages[: len(other.pages)] == other.pages
    }
