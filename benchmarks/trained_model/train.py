"""The training loop: short texts first, then texts that the selection must cut."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.trained_model.batches import Batch, Batches
from benchmarks.trained_model.selection import Teacher, vectorised

TEACHER_QUERIES = 64
SELECTION_WEIGHT = 0.3
CLIP = 1.0
DECAY = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps with texts of one range of lengths.

    Attributes:
        shortest, longest: characters of a text.
        sequences: in a step.
        prompted: texts stand in the harness's prompt, as they will be asked.
        rate: peak of the learning rate; it starts and ends at a tenth of it.
    """

    steps: int
    shortest: int
    longest: int
    sequences: int
    rate: float
    prompted: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """How a stretch of steps went, on average."""

    step: int
    seconds: float
    loss: float
    selection_loss: float
    answers_right: float
    """Share of answers of which every token was the most likely one."""


OnProgress = Callable[[Stage, Progress], None]


def train(
    model: Any,
    batches: Batches,
    stages: Sequence[Stage],
    *,
    device: torch.device,
    on_progress: OnProgress,
    every: int = 25,
    seed: int = 0,
) -> None:
    """Train `model` in place; `device` has it already."""
    teacher = Teacher(TEACHER_QUERIES, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(_groups(model), betas=(0.9, 0.95))
    step, start = 0, time.perf_counter()
    model.train()
    with vectorised(teacher):
        for stage in stages:
            sums = [0.0, 0.0, 0.0]
            for at in range(stage.steps):
                for group in optimizer.param_groups:
                    group["lr"] = _rate(stage, at)
                lengths = stage.shortest, stage.longest
                batch = batches.draw(stage.sequences, lengths, stage.prompted)
                found = _step(model, batch.to(device), teacher, optimizer)
                sums = [total + value for total, value in zip(sums, found, strict=True)]
                step += 1
                if (at + 1) % every == 0:
                    means = [total / every for total in sums]
                    seconds = time.perf_counter() - start
                    on_progress(stage, Progress(step, seconds, *means))
                    sums = [0.0, 0.0, 0.0]
    model.eval()


def score(
    model: Any, batches: Batches, length: int, *, count: int, device: torch.device
) -> float:
    """Share of answers right, each token after the right ones before it."""
    model.eval()
    right = 0.0
    with vectorised(), torch.no_grad():
        for _ in range(count):
            batch = batches.draw(1, (length, length)).to(device)
            right += float(_answers_right(_logits(model, batch.ids), batch))
    return right / count


def report(stage: Stage, progress: Progress) -> dict[str, Any]:
    return {"longest": stage.longest} | asdict(progress)


def _groups(model: Any) -> list[dict[str, Any]]:
    """Matrices decay; norms, biases, convolutions and tables do not."""
    named = [(n, p) for n, p in model.named_parameters() if "visual" not in n]
    decays = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    kept = {id(p) for p in decays}
    others = [p for _, p in named if id(p) not in kept]
    return [
        {"params": decays, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]


def _rate(stage: Stage, at: int) -> float:
    warm = min(1.0, (at + 1) / max(stage.steps // 10, 1))
    cosine = 0.55 + 0.45 * math.cos(math.pi * at / stage.steps)
    return stage.rate * min(max(warm, 0.1), 1.0) * cosine


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    hidden = model.model.language_model(ids, use_cache=False).last_hidden_state
    logits: torch.Tensor = model.lm_head(hidden[:, :-1])
    return logits


def _step(
    model: Any, batch: Batch, teacher: Teacher, optimizer: torch.optim.Optimizer
) -> tuple[float, float, float]:
    teacher.losses.clear()
    with torch.autocast("cuda", torch.bfloat16, enabled=batch.ids.is_cuda):
        logits = _logits(model, batch.ids)
    each = functional.cross_entropy(
        logits.float().transpose(1, 2), batch.ids[:, 1:], reduction="none"
    )
    loss = (each * batch.weights).sum() / batch.weights.sum()
    selection = torch.stack(teacher.losses).mean()
    optimizer.zero_grad(set_to_none=True)
    (loss + SELECTION_WEIGHT * selection).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    right = _answers_right(logits.detach(), batch).float().mean()
    return loss.item(), selection.item(), right.item()


def _answers_right(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[batch], bool."""
    same = logits.argmax(-1) == batch.ids[:, 1:]
    return (same | ~batch.answers).all(-1)
