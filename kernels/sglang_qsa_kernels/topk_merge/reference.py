"""What `topk_merge` computes, in plain torch."""

from __future__ import annotations

import torch


def topk_merge_reference(
    scores: torch.Tensor, blocks: torch.Tensor, *, rank: int, run_blocks: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, local blocks and local counts as `topk_merge` returns them."""
    ranks, rows, count = scores.shape
    out = torch.full((rows, count), -1, dtype=torch.int32, device=scores.device)
    local = torch.full_like(out, -1)
    counts = torch.zeros(rows, dtype=torch.int32, device=scores.device)
    for row in range(rows):
        block = blocks[:, row].flatten()
        score = scores[:, row].flatten()[block >= 0]
        block, order = block[block >= 0].sort()
        best = score[order].sort(descending=True, stable=True).indices[:count]
        chosen = block[best].sort().values
        out[row, : len(chosen)] = chosen
        run = chosen // run_blocks
        mine = run % ranks == rank
        here = (run // ranks * run_blocks + chosen % run_blocks)[mine]
        local[row, : len(here)] = here
        counts[row] = len(here)
    return out, local, counts
