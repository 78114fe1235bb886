"""Break one thing in the records that the store gives back, and only there.

The file `$QSA_TEST_MUTATION` names the mutation; while there is no such file all
records are given back as they were read. Look-ups, counters and outcomes stay those of
a healthy tier: only the bytes are wrong.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

DROPS = {
    "k": ("k",),
    "v": ("v",),
    "index": ("index",),
    "state": ("ssm",),
    "window": ("conv",),
    "ple": ("ple_conv", "ple_ngram"),
}
"""Mutation -> planes that come back as zeros."""

WINDOWS = ("conv", "ple_conv", "ple_ngram")
"""Planes whose last axis is the tokens before the boundary."""

Bytes = npt.NDArray[np.uint8]


def drop(planes: Sequence[str], layout: Any, _kept: Any, reads: Sequence[Any]) -> None:
    for read in reads:
        for name, data in _planes(layout, read):
            if name in planes:
                data[:] = 0


def shift(layout: Any, _kept: Any, reads: Sequence[Any]) -> None:
    """Every window as it is one token later."""
    shapes = {plane.name: plane for plane in layout.planes}
    for read in reads:
        for name, data in _planes(layout, read):
            if name in WINDOWS:
                plane = shapes[name]
                tokens = data.reshape(*plane.shape, plane.dtype.item_bytes)
                tokens[:] = np.roll(tokens, -1, axis=-2)


def swap(layout: Any, _kept: Any, reads: Sequence[Any]) -> None:
    """The keys of the first page of a load and of its last, exchanged.

    Whole pages would not do: keys carry their positions, so that attention over the
    same pages in another order is the same attention.
    """
    pages = [
        dict(_planes(layout, read))["k"] for read in reads if _is_page(layout, read)
    ]
    if len(pages) > 1:
        first = pages[0].copy()
        pages[0][:] = pages[-1]
        pages[-1][:] = first


def stale(layout: Any, kept: dict[str, Bytes], reads: Sequence[Any]) -> None:
    """The checkpoint of the load before, as if its slot had not been written."""
    checkpoints = [_bytes(read) for read in reads if not _is_page(layout, read)]
    _replace(checkpoints, kept, "checkpoint")


def foreign(layout: Any, kept: dict[str, Bytes], reads: Sequence[Any]) -> None:
    """The last page of the load before in place of the last page of this one."""
    pages = [_bytes(read) for read in reads if _is_page(layout, read)]
    _replace(pages[-1:], kept, "page")


Mutation = Callable[[Any, dict[str, Bytes], Sequence[Any]], None]

MUTATIONS: dict[str, Mutation] = {
    **{name: functools.partial(drop, planes) for name, planes in DROPS.items()},
    "shift": shift,
    "swap": swap,
    "stale": stale,
    "foreign": foreign,
}


def apply(module: ModuleType) -> None:
    """Wrap the store's read; called once, when it is imported."""
    armed = Path(os.environ["QSA_TEST_MUTATION"])
    store = module.DirectoryStore
    initialise, get = store.__init__, store._get
    kept: dict[str, Bytes] = {}

    @functools.wraps(initialise)
    def remember(self: Any, directory: Any, layout: Any, **options: Any) -> None:
        self.layout_to_break = layout
        initialise(self, directory, layout, **options)

    @functools.wraps(get)
    def get_and_break(self: Any, reads: Sequence[Any]) -> Any:
        outcomes = get(self, reads)
        if armed.exists():
            MUTATIONS[armed.read_text()](self.layout_to_break, kept, reads)
        return outcomes

    store.__init__, store._get = remember, get_and_break


def _replace(records: Sequence[Bytes], kept: dict[str, Bytes], name: str) -> None:
    for data in records:
        before = kept.get(name)
        kept[name] = data.copy()
        if before is not None:
            data[:] = before


def _planes(layout: Any, read: Any) -> list[tuple[str, Bytes]]:
    record = layout.page if _is_page(layout, read) else layout.checkpoint
    data = _bytes(read)
    return [
        (name, data[span.offset : span.offset + span.size])
        for name, span in record.spans().items()
    ]


def _is_page(layout: Any, read: Any) -> bool:
    return bool(_bytes(read).size == layout.page_bytes)


def _bytes(read: Any) -> Bytes:
    return np.frombuffer(read.into, np.uint8)
