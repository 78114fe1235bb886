"""A long prompt through a restart: cold, device hit, kill -9, LMCache hit.

    python -m benchmarks.restart --out DIR [--prompt-tokens N] [-- launch flags]

Runs the real server and the real daemon. Every LMCache hit is compared with a
device hit of the same prompt, which recomputes the same tokens after the same
boundary; never with a cold run. Writes `restart.json` and `restart.md`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.real_shapes import write_real_shapes
from sglang_qsa.demo.client import Generation, flush_cache, generate
from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import anchor_tokens, lmcache_flags, wait_until_stored
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from sglang_qsa.layout import Layout

ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: `ttft_s` is the time of a request for a single token."""

    step: str
    ttft_s: float
    device_tokens: int
    storage_tokens: int
    tokens_equal: bool
    max_logprob_difference: float


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    with ProgressLine() as progress:
        result = _measure(options, progress)
    (options.out / "restart.json").write_text(json.dumps(result, indent=2) + "\n")
    table = as_markdown(result)
    (options.out / "restart.md").write_text(table)
    print(table)
    return 0 if result["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.restart", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=32_780)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--l1-gb", type=int, default=8)
    parser.add_argument("--chunk-tokens", type=int, default=64)
    parser.add_argument("--note", default="", help="goes into the result as it is")
    parser.add_argument(
        "--tiny", action="store_true", help="the tiny model instead of real shapes"
    )
    parser.add_argument("flags", nargs="*", metavar="-- LAUNCH_SERVER_FLAGS")
    return parser


def _measure(options: argparse.Namespace, progress: ProgressLine) -> dict[str, Any]:
    model, flags = _model(options)
    work = options.out / "logs"
    with LMCacheDaemon(
        work, chunk_tokens=options.chunk_tokens, l1_gb=options.l1_gb
    ) as daemon:
        daemon.wait_ready(progress)
        server = SGLangServer(
            model, work, device=options.device, flags=[*lmcache_flags(daemon), *flags]
        )
        with server:
            started = time.monotonic()
            server.wait_ready(progress)
            run = _Run(server, daemon, options, progress)
            start_s = time.monotonic() - started
            run.before_restart()
            progress("kill -9")
            server.kill9()
            started = time.monotonic()
            server.start()
            server.wait_ready(progress)
            restart_s = time.monotonic() - started
            run.after_restart()
            layout = build(read_model_config(model), ServerFacts(), origin=str(model))
            return _result(options, run, layout, start_s, restart_s, daemon.log)


def _model(options: argparse.Namespace) -> tuple[Path, list[str]]:
    tiny = cached_checkpoint()
    if options.tiny:
        return tiny, list(options.flags)
    model = write_real_shapes(options.out / "logs" / "real-shapes", tiny)
    return model, ["--load-format", "dummy", "--skip-tokenizer-init", *options.flags]


class _Run:
    """The requests in order, each compared with the device hit."""

    def __init__(
        self,
        server: SGLangServer,
        daemon: LMCacheDaemon,
        options: argparse.Namespace,
        progress: ProgressLine,
    ) -> None:
        self._server = server
        self._daemon = daemon
        self._options = options
        self._progress = progress
        self._yardstick: Generation | None = None
        self.samples: list[Sample] = []

    def before_restart(self) -> None:
        self._warm()
        stored = self._daemon.stored_objects()
        self._sample("cold")
        self._yardstick = self._generate(self._prompt(), ANSWER_TOKENS)
        for _ in range(self._options.repeats):
            self._sample("device hit")
        wait_until_stored(self._daemon, stored, self._progress)

    def after_restart(self) -> None:
        self._sample("LMCache hit, first request after the restart")
        self._warm()
        for _ in range(self._options.repeats):
            flush_cache(self._server.url)
            self._sample("LMCache hit")
        for _ in range(self._options.repeats):
            self._sample("device hit after restart")

    def _warm(self) -> None:
        """Other prompts of every size involved, so that no sample compiles."""
        for tokens in (self._options.prompt_tokens, 200):
            prompt = [(7 * i + tokens) % 400 + 5 for i in range(tokens)]
            self._progress(f"warm-up, {tokens:,} tokens")
            self._generate(prompt, 4)
            self._generate(prompt, 4)

    def _prompt(self) -> list[int]:
        return [
            (31 * i * i + 17 * i) % 487 + 5 for i in range(self._options.prompt_tokens)
        ]

    def _generate(self, prompt: list[int], tokens: int) -> Generation:
        return generate(self._server.url, prompt, max_new_tokens=tokens)

    def _sample(self, step: str) -> None:
        self._progress(step)
        first = self._generate(self._prompt(), 1)
        answer = self._generate(self._prompt(), ANSWER_TOKENS)
        yardstick = self._yardstick or answer
        pairs = zip(answer.logprobs, yardstick.logprobs, strict=True)
        difference = max(abs(a - b) for a, b in pairs)
        # The single-token request is the one that was restored; its log-probability
        # is compared too.
        difference = max(difference, abs(first.logprobs[0] - yardstick.logprobs[0]))
        self.samples.append(
            Sample(
                step=step,
                ttft_s=first.seconds,
                device_tokens=first.device_tokens,
                storage_tokens=first.storage_tokens,
                tokens_equal=answer.output_ids == yardstick.output_ids,
                max_logprob_difference=difference,
            )
        )


def _result(
    options: argparse.Namespace,
    run: _Run,
    layout: Layout,
    start_s: float,
    restart_s: float,
    daemon_log: str,
) -> dict[str, Any]:
    anchor = anchor_tokens(options.prompt_tokens)
    restored = [s for s in run.samples if s.step.startswith("LMCache hit")]
    record_bytes = (
        anchor // layout.geometry.page_tokens * layout.page_bytes
        + layout.checkpoint_bytes
    )
    medians = _medians(run.samples)
    added_s = medians["LMCache hit"] - medians["device hit after restart"]
    ok = all(
        s.storage_tokens == anchor
        and s.tokens_equal
        and s.max_logprob_difference == 0.0
        for s in restored
    )
    return {
        "benchmark": "restart",
        "ok": ok,
        "machine": machine.describe(),
        "baseline": "device hit of the same prompt on the same server",
        "note": options.note,
        "arguments": {
            "prompt_tokens": options.prompt_tokens,
            "repeats": options.repeats,
            "chunk_tokens": options.chunk_tokens,
            "flags": options.flags,
        },
        "layout_id": layout.layout_id,
        "restored_tokens": anchor,
        "restored_bytes": record_bytes,
        "server_start_s": round(start_s, 1),
        "server_restart_s": round(restart_s, 1),
        "median_ttft_s": {step: round(value, 4) for step, value in medians.items()},
        "restore_added_s": round(added_s, 4),
        "restore_gb_per_s": round(record_bytes / added_s / 1e9, 2)
        if added_s > 0
        else None,
        "daemon_retrieve_s": _daemon_seconds(daemon_log, anchor),
        "max_logprob_difference": max(s.max_logprob_difference for s in restored),
        "samples": [asdict(sample) for sample in run.samples],
    }


def _medians(samples: Sequence[Sample]) -> dict[str, float]:
    steps = dict.fromkeys(sample.step for sample in samples)
    return {
        step: statistics.median(s.ttft_s for s in samples if s.step == step)
        for step in steps
    }


def _daemon_seconds(log: str, tokens: int) -> list[float]:
    """What the daemon itself reports per retrieve of the whole prefix."""
    return [
        float(seconds)
        for seconds in re.findall(rf"Retrieved {tokens} tokens in (\S+) seconds", log)
    ]


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a table, with what it was measured on."""
    facts = result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    lines = [
        "# Restart and restore of a "
        f"{result['arguments']['prompt_tokens']:,}-token prompt",
        "",
        f"{facts['gpu'] or facts['cpu']}, {versions}, commit {facts['commit'][:12]}. "
        f"Baseline: {result['baseline']}. Medians of {result['arguments']['repeats']}.",
        "",
        "| step | TTFT, s | from device | from LMCache | tokens "
        "| max log-prob difference |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for step, median in result["median_ttft_s"].items():
        samples = [s for s in result["samples"] if s["step"] == step]
        worst = max(s["max_logprob_difference"] for s in samples)
        equal = "equal" if all(s["tokens_equal"] for s in samples) else "differ"
        lines.append(
            f"| {step} | {median:.3f} | {samples[0]['device_tokens']:,} "
            f"| {samples[0]['storage_tokens']:,} | {equal} "
            f"| {'–' if step == 'cold' else f'{worst:g}'} |"
        )
    rate = result["restore_gb_per_s"]
    lines += [
        "",
        f"{result['restored_bytes'] / 1e6:,.1f} MB restored; "
        f"{result['restore_added_s'] * 1e3:,.1f} ms over a device hit"
        + (f" ({rate:g} GB/s)." if rate else "."),
    ]
    if result["note"]:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
