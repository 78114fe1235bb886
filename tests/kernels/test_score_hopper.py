"""Which calls the scorer's Hopper kernel takes, and that it changes nothing in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sglang_qsa_kernels.score import hopper, score
from sglang_qsa_kernels.score.cases import SCALE, Inputs, inputs, long_case
from sglang_qsa_kernels.score.tiles import (
    HOPPER,
    SAFE,
    TUNED,
    HopperTile,
    KeyFormat,
    Tile,
    tile_of,
)

BF16 = KeyFormat.BF16
H200 = "NVIDIA H200"
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


def pool(pages: int = 4, page_size: int = 16, **options: Any) -> torch.Tensor:
    shape = (pages, page_size, 128)
    return torch.zeros(shape, **{"dtype": torch.bfloat16} | options)


TAKEN: dict[str, tuple[torch.Tensor, int, str, bool]] = {
    "a layer of SGLang's pool": (pool(12).view(3, 4, 16, 128)[1], 128, "3.6.0", True),
    "a Triton it has not run with": (pool(), 1, "3.9.1", False),
    "a Triton without Gluon": (pool(), 1, "3.3.1", False),
    "e4m3": (pool(dtype=torch.float8_e4m3fn), 1, "3.6.0", False),
    "pages of 8": (pool(page_size=8), 1, "3.6.0", False),
    "pages of 64": (pool(page_size=64), 1, "3.6.0", False),
    "pages apart": (pool(8)[::2], 1, "3.6.0", False),
    "an odd address": (pool().flatten()[4:-2044].view(3, 16, 128), 1, "3.6.0", False),
    "many requests": (pool(), 129, "3.6.0", False),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_it_takes(what: str) -> None:
    keys, requests, version, taken = TAKEN[what]
    assert hopper.takes(keys, requests, triton_version=version) == taken


@pytest.mark.parametrize(
    ("gpu", "requests", "taken", "wanted"),
    [
        (H200, 1, True, HOPPER[H200].few),
        (H200, 2, True, HOPPER[H200].many),
        (H200, 2, False, TUNED[H200][BF16].many),
        ("NVIDIA H100 80GB HBM3", 2, True, SAFE[BF16]),
        ("NVIDIA L4", 1, False, SAFE[BF16]),
    ],
)
def test_the_tile_of_a_gpu(
    gpu: str, requests: int, taken: bool, wanted: Tile | HopperTile
) -> None:
    assert tile_of(BF16, gpu, requests=requests, hopper=taken) == wanted


def scored(given: Inputs) -> list[torch.Tensor]:
    """Scores and maxima."""
    q, table, visible = given.q, given.page_table, given.visible
    maxima = torch.empty((*visible.shape, table.shape[1]), device=q.device)
    return [score(q, given.keys, table, visible, scale=SCALE, maxima=maxima), maxima]


@needs_gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("requests", "tokens"), [(1, 20_001), (9, 9_999), (128, 700)])
def test_it_gives_the_bits_of_the_other(
    requests: int,
    tokens: int,
    rows: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = replace(long_case(requests, rows, tokens, BF16), spare_pages=3)
    (given,) = inputs(case, device)
    found = scored(given)
    monkeypatch.setattr(hopper, "takes", lambda *_: False)
    for ours, other in zip(found, scored(given), strict=True):
        assert torch.equal(ours.view(torch.int32), other.view(torch.int32))


@needs_gpu
def test_a_pool_that_was_scored_can_be_freed(device: torch.device) -> None:
    (given,) = inputs(long_case(2, 4, 8_192, BF16), device)
    before = torch.cuda.memory_allocated()
    scored(replace(given, keys=given.keys.clone()))
    assert torch.cuda.memory_allocated() == before
