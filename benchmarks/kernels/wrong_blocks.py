"""How often a selector misses the true blocks, and what that does to attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from benchmarks.kernels.timing import NOT_INSTALLED
from sglang_qsa_kernels.topk.cases import HEAD_DIM, HEADS, RATIO, fill
from sglang_qsa_kernels.topk.reference import topk_reference

ROWS = 4
CALLS = 200
BLOCKS = (8_192, 16_384, 32_768, 65_536)
SIGMAS = (0.0, 0.5, 1.0, 2.0)
FILLS = ("uniform", "close", "zero", "sparse", "five")
NOISE = 0.3
SHARPNESS = 3.0
"""Deviation of the logits: a small part of the tokens has most of the weight."""

Select = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def wrong_blocks(
    selectors: Mapping[str, Select | None], device: torch.device
) -> list[dict[str, Any]]:
    """One row per distribution of scores: wrong picks, sets seen, attention error.

    Args:
        selectors: by name; None for one that is not installed.
    """
    return [
        _row(blocks, name, scores, attention, selectors)
        for blocks, name, scores, attention in _scores(device)
    ]


def wrong_table(rows: list[dict[str, Any]]) -> list[str]:
    """`wrong_blocks` as lines of Markdown."""
    names = list(rows[0]["selectors"])
    heads = ["wrong, {}", f"sets in {CALLS} calls, {{}}", "attention error, {}"]
    columns = [head.format(name) for head in heads for name in names]
    return [
        "Share of the 512 picks that are not in the true 512, and what they do to "
        "attention (relative error against full fp64 attention; the true 512 blocks "
        "beside it). Keys share a component of the given size; queries follow it; "
        "K of a token is its block's index key plus noise of 0.3 σ; V is normal.",
        "",
        f"| blocks | scores | {' | '.join(columns)} | true blocks |",
        "|---:|---|" + "---:|" * (len(columns) + 1),
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
    ]


def _cells(row: dict[str, Any]) -> list[str]:
    found = row["selectors"].values()

    def shown(key: str, form: str) -> list[str]:
        return [
            NOT_INSTALLED if each is None else _shown(each[key], form) for each in found
        ]

    return [
        f"{row['blocks']:,}",
        row["scores"],
        *shown("wrong", ".1%"),
        *shown("sets", "d"),
        *shown("error", ".4f"),
        _shown(row["true_error"], ".4f"),
    ]


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


class Attention:
    """Full attention in fp64 over all tokens of a context, and over some blocks."""

    def __init__(
        self, queries: torch.Tensor, keys: torch.Tensor, generator: torch.Generator
    ) -> None:
        """Args: queries [rows, heads, dim], index keys [blocks, dim]."""
        shape = (len(keys) * RATIO, keys.shape[1])
        noise = torch.randn(shape, generator=generator, device=keys.device)
        tokens = keys.repeat_interleave(RATIO, 0) + NOISE * noise
        self.values = torch.randn(
            shape, generator=generator, device=keys.device
        ).double()
        directions = queries.double() / queries.double().norm(dim=-1, keepdim=True)
        self.logits = SHARPNESS * directions @ tokens.double().T
        self.full = self.logits.softmax(-1) @ self.values

    def error(self, selection: torch.Tensor) -> float:
        """Relative error of the output when only `selection` [rows, 512] is read."""
        visible = torch.zeros(
            (len(selection), self.logits.shape[2] // RATIO + 1),
            dtype=torch.bool,
            device=selection.device,
        )
        # A selector may return fewer: -1 marks the last, surplus column.
        visible.scatter_(1, selection.long() % visible.shape[1], True)
        tokens = visible[:, :-1].repeat_interleave(RATIO, 1)
        logits = self.logits.masked_fill(~tokens[:, None], -torch.inf)
        found = logits.softmax(-1) @ self.values
        return float((found - self.full).norm() / self.full.norm())


def _scores(
    device: torch.device,
) -> Iterator[tuple[int, str, torch.Tensor, Attention | None]]:
    for blocks in BLOCKS:
        generator = torch.Generator(device).manual_seed(blocks)
        for sigma in SIGMAS:
            keys, queries = _shared(sigma, blocks, generator)
            products = queries.float() @ keys.float().T
            scores = products.relu_().sum(1) / math.sqrt(HEAD_DIM)
            attention = Attention(queries, keys, generator)
            yield blocks, f"keys share {sigma} σ", scores, attention
        for kind in FILLS:
            yield blocks, kind, fill(kind, (ROWS, blocks), generator), None


def _shared(
    sigma: float, blocks: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Index keys [blocks, dim] and queries [rows, heads, dim] in bf16."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    common = normal(HEAD_DIM)
    common *= sigma * math.sqrt(HEAD_DIM) / common.norm()
    keys = (normal(blocks, HEAD_DIM) + common).bfloat16()
    queries = (normal(ROWS, HEADS, HEAD_DIM) + common).bfloat16()
    return keys, queries


def _row(
    blocks: int,
    name: str,
    scores: torch.Tensor,
    attention: Attention | None,
    selectors: Mapping[str, Select | None],
) -> dict[str, Any]:
    lengths = torch.full((ROWS,), blocks, dtype=torch.int32, device=scores.device)
    truth = topk_reference(scores, lengths)

    def judged(select: Select) -> dict[str, Any]:
        found = select(scores, lengths)
        return {
            "wrong": _wrong(scores, found, truth),
            "sets": _sets(select, scores, lengths),
            "error": _error(attention, found),
        }

    return {
        "blocks": blocks,
        "scores": name,
        "true_error": _error(attention, truth),
        "selectors": {
            who: None if select is None else judged(select)
            for who, select in selectors.items()
        },
    }


def _wrong(scores: torch.Tensor, found: torch.Tensor, truth: torch.Tensor) -> float:
    """Share of picks whose score is below the 512th, that repeat, or that are missing.

    Another block of the same score as the 512th is not counted: that is a tie.
    """
    last = scores.gather(1, truth.long()).amin(1)
    right = 0
    for row in range(len(found)):
        picks = found[row][found[row] >= 0].long().unique()
        right += int((scores[row, picks] >= last[row]).sum())
    return 1 - right / truth.numel()


def _sets(select: Select, scores: torch.Tensor, lengths: torch.Tensor) -> int:
    """Different sets that the first row gets in `CALLS` calls."""
    calls = [select(scores, lengths)[0].sort().values for _ in range(CALLS)]
    return len(torch.stack(calls).unique(dim=0))


def _error(attention: Attention | None, selection: torch.Tensor) -> float | None:
    return None if attention is None else attention.error(selection)
