"""A long prompt through a restart: cold, device hit, kill -9, LMCache hit.

    python -m benchmarks.restart --out DIR [--prompt-tokens N] [-- launch flags]

Runs the real server and the real daemon. Every LMCache hit is compared with a
device hit of the same prompt, which recomputes the same tokens after the same
boundary; never with a cold run. Writes `restart.json` and `restart.md`.
"""

from __future__ import annotations

import argparse
import json
import os
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
COLD = "cold"
DEVICE_HIT = "device hit"
FIRST_RESTORED = "LMCache hit, first request after the restart"
RESTORED = "LMCache hit"
HIT_AFTER_RESTART = "device hit after the restart"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt: `ttft_s` is the time of a request for a single token.

    `logprobs` are those of that token and of an answer right after it.
    """

    step: str
    ttft_s: float
    device_tokens: int
    storage_tokens: int
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


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
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--stable-selection",
        action="store_true",
        help="replace upstream's selection, whose ties change from call to call",
    )
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
            model,
            work,
            device=options.device,
            flags=[*lmcache_flags(daemon), *flags],
            environment=_environment(options),
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


def _environment(options: argparse.Namespace) -> dict[str, str]:
    if not options.stable_selection:
        return {}
    inherited = os.environ.get("PYTHONPATH", "")
    folder = str(Path(__file__).parent / "stable_selection")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [folder, inherited]))}


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
        self.samples: list[Sample] = []

    def before_restart(self) -> None:
        self._warm()
        stored = self._daemon.stored_objects()
        self._sample(COLD)
        for _ in range(self._options.repeats):
            self._sample(DEVICE_HIT)
        wait_until_stored(self._daemon, stored, self._progress)

    def after_restart(self) -> None:
        self._sample(FIRST_RESTORED)
        self._warm()
        for _ in range(self._options.repeats):
            flush_cache(self._server.url)
            self._sample(RESTORED)
            self._sample(HIT_AFTER_RESTART)

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
        self.samples.append(
            Sample(
                step=step,
                ttft_s=first.seconds,
                device_tokens=first.device_tokens,
                storage_tokens=first.storage_tokens,
                output_ids=answer.output_ids,
                logprobs=(*first.logprobs, *answer.logprobs),
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
    samples = run.samples
    restored = _of(samples, FIRST_RESTORED, RESTORED)
    hits = _of(samples, DEVICE_HIT, HIT_AFTER_RESTART)
    record_bytes = (
        anchor // layout.geometry.page_tokens * layout.page_bytes
        + layout.checkpoint_bytes
    )
    pairs = zip(_of(samples, RESTORED), _of(samples, HIT_AFTER_RESTART), strict=True)
    added_s = statistics.median(r.ttft_s - h.ttft_s for r, h in pairs)
    return {
        "benchmark": "restart",
        "ok": _holds(restored, hits, anchor),
        "machine": machine.describe(),
        "baseline": "device hit of the same prompt on the same server",
        "note": options.note,
        "arguments": {
            "prompt_tokens": options.prompt_tokens,
            "repeats": options.repeats,
            "chunk_tokens": options.chunk_tokens,
            "stable_selection": options.stable_selection,
            "flags": options.flags,
        },
        "layout_id": layout.layout_id,
        "restored_tokens": anchor,
        "restored_bytes": record_bytes,
        "server_start_s": round(start_s, 1),
        "server_restart_s": round(restart_s, 1),
        "steps": [
            _summary(step, _of(samples, step), hits[0])
            for step in dict.fromkeys(sample.step for sample in samples)
        ],
        "device_hit_outcomes": len({hit.logprobs for hit in hits}),
        "restore_added_s": round(added_s, 4),
        "restore_gb_per_s": (
            round(record_bytes / added_s / 1e9, 2) if added_s > 0 else None
        ),
        "daemon_retrieve_s": _daemon_seconds(daemon_log, anchor),
        "samples": [asdict(sample) for sample in samples],
    }


def _holds(restored: list[Sample], hits: list[Sample], anchor: int) -> bool:
    """Served whole, with the tokens of a device hit, and no further from the first
    device hit than the others are: not at all, where those agree."""
    spread = _difference(hits, hits[0])
    return _difference(restored, hits[0]) <= spread and all(
        s.storage_tokens == anchor and s.output_ids == hits[0].output_ids
        for s in restored
    )


def _difference(samples: list[Sample], yardstick: Sample) -> float:
    return max(
        abs(a - b)
        for sample in samples
        for a, b in zip(sample.logprobs, yardstick.logprobs, strict=True)
    )


def _of(samples: Sequence[Sample], *steps: str) -> list[Sample]:
    return [sample for sample in samples if sample.step in steps]


def _summary(step: str, samples: list[Sample], yardstick: Sample) -> dict[str, Any]:
    """One line of the table; differences are to the first device hit."""
    return {
        "step": step,
        "samples": len(samples),
        "median_ttft_s": round(statistics.median(s.ttft_s for s in samples), 4),
        "device_tokens": samples[0].device_tokens,
        "storage_tokens": min(s.storage_tokens for s in samples),
        "tokens_equal": all(s.output_ids == yardstick.output_ids for s in samples),
        "max_logprob_difference": _difference(samples, yardstick),
    }


def _daemon_seconds(log: str, tokens: int) -> list[float]:
    """What the daemon itself reports per retrieve of the whole prefix."""
    return [
        float(seconds)
        for seconds in re.findall(rf"Retrieved {tokens} tokens in (\S+) seconds", log)
    ]


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a table, with what it was measured on."""
    facts, arguments = result["machine"], result["arguments"]
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    lines = [
        f"# Restart and restore of a {arguments['prompt_tokens']:,}-token prompt",
        "",
        f"{facts['gpu'] or facts['cpu']}, {versions}, commit {facts['commit'][:12]}. "
        f"LMCache chunk {arguments['chunk_tokens']}, {_selection(arguments)}. "
        f"Baseline: {result['baseline']}.",
        "",
        "| step | n | TTFT, s | from device | from LMCache | tokens "
        "| max log-prob difference to the first device hit |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    lines += [
        f"| {row['step']} | {row['samples']} | {row['median_ttft_s']:.3f} "
        f"| {row['device_tokens']:,} | {row['storage_tokens']:,} "
        f"| {'equal' if row['tokens_equal'] else 'differ'} "
        f"| {row['max_logprob_difference']:g} |"
        for row in result["steps"]
    ]
    rate = result["restore_gb_per_s"]
    lines += [
        "",
        f"{result['restored_bytes'] / 1e6:,.1f} MB restored, median "
        f"{result['restore_added_s'] * 1e3:,.1f} ms over the device hit right after it"
        + (f" ({rate:g} GB/s)." if rate else " (below the noise)."),
        "",
        _outcomes(result),
    ]
    if result["note"]:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


def _selection(arguments: dict[str, Any]) -> str:
    kind = "stable" if arguments["stable_selection"] else "upstream's"
    return f"{kind} block selection"


def _outcomes(result: dict[str, Any]) -> str:
    count = result["device_hit_outcomes"]
    if count == 1:
        return "All device hits gave the same log-probabilities, bit for bit."
    return (
        f"Device hits by themselves gave {count} different sets of log-probabilities: "
        "upstream's block selection breaks ties by atomics. Compare bits with "
        "`--stable-selection`."
    )


if __name__ == "__main__":
    sys.exit(main())
