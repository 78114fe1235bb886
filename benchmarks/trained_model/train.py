"""The training loop: short texts first, then texts that the selection must cut."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.trained_model.batches import Batch, Batches
from benchmarks.trained_model.drafts import Drafts, guesses
from benchmarks.trained_model.selection import Teacher, vectorised
from benchmarks.trained_model.tasks import REPEATS

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
        repeats: share of a text's filling that states a value again.
        rate: peak of the learning rate; it starts and ends at a tenth of it.
    """

    steps: int
    shortest: int
    longest: int
    sequences: int
    rate: float
    prompted: bool = True
    repeats: float = REPEATS


@dataclass(frozen=True, slots=True)
class Progress:
    """How a stretch of steps went, on average."""

    step: int
    seconds: float
    loss: float
    selection_loss: float
    answers_right: float
    """Share of answers of which every token was the most likely one."""
    drafts_loss: float
    drafts_right: float
    """Share of the tokens of answers that the MTP layer guessed."""


OnProgress = Callable[[Stage, Progress], None]


def train(
    model: Any,
    drafts: Drafts,
    batches: Batches,
    stages: Sequence[Stage],
    *,
    device: torch.device,
    on_progress: OnProgress,
    every: int = 25,
    seed: int = 0,
) -> None:
    """Train both in place; `device` has them already."""
    teacher = Teacher(TEACHER_QUERIES, torch.Generator().manual_seed(seed))
    optimizer = _optimizer(model, drafts)
    step_once = partial(_step, model, drafts, teacher, optimizer)
    step, start = 0, time.perf_counter()
    model.train()
    with vectorised(teacher):
        for stage in stages:
            found: list[tuple[float, ...]] = []
            for at in range(stage.steps):
                for group in optimizer.param_groups:
                    group["lr"] = _rate(stage, at)
                lengths = stage.shortest, stage.longest
                batch = batches.draw(
                    stage.sequences,
                    lengths,
                    prompted=stage.prompted,
                    repeats=stage.repeats,
                )
                found.append(step_once(batch.to(device)))
                step += 1
                if len(found) == every:
                    means = map(statistics.fmean, zip(*found, strict=True))
                    seconds = time.perf_counter() - start
                    on_progress(stage, Progress(step, seconds, *means))
                    found = []
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
            right += float(_answers_right(_forward(model, batch.ids)[0], batch))
    return right / count


def report(stage: Stage, progress: Progress) -> dict[str, Any]:
    return {"longest": stage.longest} | asdict(progress)


def _optimizer(model: Any, drafts: Drafts) -> torch.optim.Optimizer:
    """Matrices decay; norms, biases, convolutions and tables do not."""
    named = [(n, p) for n, p in model.named_parameters() if "visual" not in n]
    named += drafts.named_parameters()
    decays = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    kept = {id(p) for p in decays}
    others = [p for _, p in named if id(p) not in kept]
    groups = [
        {"params": decays, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def _rate(stage: Stage, at: int) -> float:
    warm = min(1.0, (at + 1) / max(stage.steps // 10, 1))
    cosine = 0.55 + 0.45 * math.cos(math.pi * at / stage.steps)
    return stage.rate * min(max(warm, 0.1), 1.0) * cosine


def _forward(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits for the second token on, and the streams that MTP hears."""
    text = model.model.language_model
    kept: list[torch.Tensor] = []
    hook = text.hyper_connection_mixer.register_forward_pre_hook(
        lambda _, arguments: kept.append(arguments[0])
    )
    try:
        hidden = text(ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
    return model.lm_head(hidden[:, :-1]), kept[0]


def _step(
    model: Any,
    drafts: Drafts,
    teacher: Teacher,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
) -> tuple[float, ...]:
    """The numbers of a `Progress`, of one step."""
    teacher.losses.clear()
    with torch.autocast("cuda", torch.bfloat16, enabled=batch.ids.is_cuda):
        logits, streams = _forward(model, batch.ids)
        guessed = guesses(drafts, model, streams, batch.ids)
    loss = _loss(logits, batch.ids[:, 1:], batch.weights)
    drafts_loss = _loss(guessed, batch.ids[:, 2:], batch.weights[:, 1:])
    selection = torch.stack(teacher.losses).mean()
    optimizer.zero_grad(set_to_none=True)
    (loss + drafts_loss + SELECTION_WEIGHT * selection).backward()
    for module in (model, drafts):
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
    optimizer.step()
    right = _answers_right(logits.detach(), batch).float().mean()
    same = guessed.argmax(-1) == batch.ids[:, 2:]
    hit = same[batch.answers[:, 1:]].float().mean()
    numbers = (loss, selection, right, drafts_loss, hit)
    return tuple(number.item() for number in numbers)


def _loss(
    logits: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    each = functional.cross_entropy(
        logits.float().transpose(1, 2), wanted, reduction="none"
    )
    return (each * weights).sum() / weights.sum()


def _answers_right(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[batch], bool."""
    same = logits.argmax(-1) == batch.ids[:, 1:]
    return (same | ~batch.answers).all(-1)
