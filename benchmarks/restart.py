"""A long prompt through a restart: cold, device hit, kill -9, hit in the tier.

    python -m benchmarks.restart --out DIR [--tier lmcache|disk|linker]
        [--prompt-tokens N ...] [-- launch flags]

Runs the real server and the real tier. Every restored prompt is compared with a
device hit of the same prompt, which recomputes the same tokens after the same
boundary; never with a cold run. Writes `restart.json` and `restart.md`, with the
length in their names where there are several.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.interrupts import INTERRUPTED, stopped_as_interrupt
from benchmarks.real_shapes import write_real_shapes
from benchmarks.restart_report import (
    COLD,
    DEVICE_HIT,
    FIRST_RESTORED,
    HIT_AFTER_RESTART,
    RESTORED,
    Sample,
    as_markdown,
    as_result,
)
from benchmarks.restart_tiers import Tier, open_tier
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.daemon import PATIENT
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.errors import REFUSED
from sglang_qsa.geometry import ServerFacts, build, read_model_config

DRAFTS = 3
NEXTN = (
    *("--speculative-algorithm", "NEXTN", "--speculative-eagle-topk", "1"),
    *("--speculative-num-steps", str(DRAFTS)),
    *("--speculative-num-draft-tokens", str(DRAFTS + 1)),
)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        with stopped_as_interrupt(), ProgressLine() as progress:
            results = _measure(options, progress)
    except (OSError, RuntimeError) as error:
        print(f"benchmarks.restart: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("benchmarks.restart: interrupted", file=sys.stderr)
        return INTERRUPTED
    for tokens, result in results.items():
        name = "restart" if len(results) == 1 else f"restart_{tokens}"
        table = as_markdown(result)
        text = json.dumps(result, indent=2) + "\n"
        (options.out / f"{name}.json").write_text(text)
        (options.out / f"{name}.md").write_text(table)
        print(table)
    return 0 if all(result["ok"] for result in results.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.restart", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tier", choices=("lmcache", "disk", "linker"))
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[32_780])
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--mtp",
        action="store_true",
        help=f"a model with an MTP layer, and {DRAFTS} drafts a step",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--l1-gb", type=int, default=8, help="host memory of the tier")
    parser.add_argument("--chunk-tokens", type=int, default=64)
    parser.add_argument("--note", default="", help="goes into the result as it is")
    parser.add_argument(
        "--tiny", action="store_true", help="the tiny model instead of real shapes"
    )
    parser.add_argument("flags", nargs="*", metavar="-- LAUNCH_SERVER_FLAGS")
    parser.set_defaults(tier="lmcache")
    return parser


def _measure(
    options: argparse.Namespace, progress: ProgressLine
) -> dict[int, dict[str, Any]]:
    model, flags = _model(options)
    work = options.out / "logs"
    layout = build(read_model_config(model), ServerFacts(), origin=str(model))
    with open_tier(
        options.tier,
        work,
        chunk_tokens=options.chunk_tokens,
        gigabytes=options.l1_gb,
        progress=progress,
    ) as tier:
        server = SGLangServer(
            model,
            work,
            device=options.device,
            flags=[*tier.flags(), *flags],
            environment=PATIENT,
        )
        with server:
            started = time.monotonic()
            server.wait_ready(progress)
            run = _Run(server, tier, options, progress)
            start_s = time.monotonic() - started
            run.before_restart()
            progress("kill -9")
            server.kill9()
            started = time.monotonic()
            server.start()
            server.wait_ready(progress)
            restart_s = time.monotonic() - started
            run.after_restart()
        return {
            tokens: as_result(options, tokens, samples, layout, tier)
            | {"server_start_s": round(start_s, 1)}
            | {"server_restart_s": round(restart_s, 1)}
            for tokens, samples in run.samples.items()
        }


def _model(options: argparse.Namespace) -> tuple[Path, list[str]]:
    tiny = cached_checkpoint(mtp=options.mtp)
    flags = [*(NEXTN if options.mtp else ()), *options.flags]
    if options.tiny:
        return tiny, flags
    model = write_real_shapes(options.out / "logs" / "real-shapes", tiny)
    return model, ["--load-format", "dummy", "--skip-tokenizer-init", *flags]


class _Run:
    """The requests in order, each compared with the device hit."""

    def __init__(
        self,
        server: SGLangServer,
        tier: Tier,
        options: argparse.Namespace,
        progress: ProgressLine,
    ) -> None:
        self._server = server
        self._tier = tier
        self._options = options
        self._progress = progress
        self.samples: dict[int, list[Sample]] = {n: [] for n in options.prompt_tokens}

    def before_restart(self) -> None:
        self._warm()
        self._tier.mark()
        for tokens in self.samples:
            self._sample(COLD, tokens)
            for _ in range(self._options.repeats):
                self._sample(DEVICE_HIT, tokens)
        self._tier.wait_until_stored(self._progress)

    def after_restart(self) -> None:
        for tokens in self.samples:
            self._sample(FIRST_RESTORED, tokens)
        self._warm()
        for _ in range(self._options.repeats):
            flush_cache(self._server.url)
            for tokens in self.samples:
                self._sample(RESTORED, tokens)
                self._sample(HIT_AFTER_RESTART, tokens)

    def _warm(self) -> None:
        """Other prompts of every size involved, so that no sample compiles."""
        for tokens in (*self.samples, 200):
            prompt = [(7 * i + tokens) % 400 + 5 for i in range(tokens)]
            self._progress(f"warm-up, {tokens:,} tokens")
            self._generate(prompt, 4)
            self._generate(prompt, 4)

    def _generate(self, prompt: list[int], tokens: int) -> Generation:
        return generate(self._server.url, prompt, max_new_tokens=tokens)

    def _sample(self, step: str, tokens: int) -> None:
        self._progress(f"{step}, {tokens:,} tokens")
        # The first token depends on the length, so that no two share a page.
        prompt = [(31 * i * i + 17 * i + tokens) % 487 + 5 for i in range(tokens)]
        first = self._generate(prompt, 1)
        answer = self._generate(prompt, self._options.answer_tokens)
        self.samples[tokens].append(
            Sample(
                step=step,
                ttft_s=first.seconds,
                device_tokens=first.device_tokens,
                # A linker's tokens are reported as host memory's.
                tier_tokens=first.storage_tokens + first.host_tokens,
                output_ids=answer.output_ids,
                logprobs=(*first.logprobs, *answer.logprobs),
                accepted_drafts=answer.accepted_drafts,
            )
        )


if __name__ == "__main__":
    sys.exit(main())
