"""Train a small Qwen4Exp that can be wrong, and write problems to ask it.

    python -m benchmarks.trained_model --out DIR [--device cuda|cpu] [--size full|small]

DIR gets a checkpoint for SGLang, `problems.jsonl` for `python -m benchmarks.gsm8k
--data` (other problems than those it was trained on), and `training.json`: how the
losses fell, and the share of right answers by length of the text. Needs the evaluation
harness (requirements/bench.txt), whose prompt the model learns to answer.

Exit code 0: it answers what the evaluation needs (--min-right). 1: it does not. 2: it
could not be trained.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gsm8k.harness import template
from benchmarks.trained_model.tasks import rows
from sglang_qsa.demo import cpu_engine
from sglang_qsa.errors import REFUSED, ConfigError, refusal

TOO_WRONG = 1
ASKED_SEED = 10**6
"""Of problems for the evaluation; training draws from another stream."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.device == "cpu":
        # Without it transformers does not import beside the CPU builds.
        cpu_engine.activate()
    try:
        result = _run(options)
    except ConfigError as error:
        print(f"benchmarks.trained_model: {error}", file=sys.stderr)
        return REFUSED
    worst = min(result["right_by_length"].values())
    print(f"{options.out}: right {result['right_by_length']}")
    return 0 if worst >= options.min_right else TOO_WRONG


def _run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            refusal(
                found="no CUDA device",
                wanted="one",
                origin="--device cuda",
                way_out="use --device cpu --size small",
            )
        )
    # transformers' model: after the check, since the CPU builds do not import it.
    from tqdm import tqdm

    from benchmarks.trained_model import model as small
    from benchmarks.trained_model.batches import Batches
    from benchmarks.trained_model.stages import MOST_NAMES, STAGES
    from benchmarks.trained_model.train import Progress, Stage, report, score, train

    if options.threads:
        torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    small.write_companions(options.out)
    tokenizer = small.tokenizer(options.out)
    before, after = template()

    def prompt(text: str) -> str:
        message = [{"role": "user", "content": before + text + after}]
        asked: str = tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
        return asked

    names = MOST_NAMES[options.size]
    batches = Batches(tokenizer, prompt, options.seed, names)
    model = small.build(options.seed).to(device)
    drafts = small.build_drafts(model).to(device)
    stages = STAGES[options.size]
    lines = []
    with tqdm(total=sum(stage.steps for stage in stages), unit="step") as bar:

        def on_progress(stage: Stage, progress: Progress) -> None:
            lines.append(report(stage, progress))
            bar.update(progress.step - bar.n)
            bar.set_postfix_str(
                f"text {stage.longest}, loss {progress.loss:.3f}, "
                f"selection {progress.selection_loss:.3f}, "
                f"right {progress.answers_right:.0%}, "
                f"drafts {progress.drafts_right:.0%}"
            )

        train(model, drafts, batches, stages, device=device, on_progress=on_progress)
    right = {
        length: score(model, batches, length, count=options.asked, device=device)
        for length in options.lengths
    }
    result = machine.describe() | {
        "device": options.device,
        "size": options.size,
        "parameters": small.parameters(model),
        "training": lines,
        "right_by_length": right,
    }
    small.save(model, drafts, options.out)
    (options.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    with (options.out / "problems.jsonl").open("w") as file:
        seed, length = ASKED_SEED + options.seed, options.lengths[-1]
        for row in rows(options.asked, seed, length, names):
            file.write(json.dumps(row) + "\n")
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.trained_model",
        description="Train a small model whose answers need all of a prompt's state.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--size", choices=("full", "small", "smoke"), default="full")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=0, help="of the CPU; 0: PyTorch's choice")
    add("--asked", type=int, default=60, help="problems to score and to write")
    add(
        "--lengths",
        type=int,
        nargs="+",
        default=[500, 1500, 3500],
        help="of the texts that are scored; those to ask have the last one",
    )
    add("--min-right", type=float, default=0.9)
    return parser


if __name__ == "__main__":
    sys.exit(main())
