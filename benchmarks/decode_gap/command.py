"""Gaps between the tokens of running streams, while prompts are restored beside them.

    python -m benchmarks.decode_gap --out DIR [--variants NAME ...] [-- launch flags]

Each variant is a server of its own under the same schedule: streams decode, prompts
that were sent before come again with fresh tokens behind, and then one long cold
prompt. With host memory the device holds two of the prompts, so that each is restored
and each checkpoint backed up; without it the device holds all, and nothing is copied.
Both run the same forwards: what host memory adds to a gap is the difference. Gaps are
taken at the client, and in the scheduler between results of decode steps. Writes
`decode_gap.json` and `decode_gap.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.decode_gap.report import as_markdown, as_result
from benchmarks.decode_gap.schedule import (
    STREAM_PROMPT_TOKENS,
    TAIL_TOKENS,
    Measured,
    Notes,
    Workload,
    measure,
)
from benchmarks.interrupts import INTERRUPTED, stopped_as_interrupt
from benchmarks.real_shapes import write_real_shapes
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.errors import REFUSED
from sglang_qsa.preflight import BACKEND_NAME

PROBE = Path(__file__).parent / "probe"


@dataclass(frozen=True, slots=True)
class Variant:
    """A server to measure."""

    plugin: bool
    host: bool

    def flags(self, options: argparse.Namespace) -> list[str]:
        backend = ["--radix-cache-backend", BACKEND_NAME] if self.plugin else []
        if not self.host:
            return backend
        io = (
            ("direct", "page_first_direct") if self.plugin else ("kernel", "page_first")
        )
        return [
            *backend,
            "--enable-hierarchical-cache",
            *("--hicache-size", str(options.host_gb)),
            *("--hicache-io-backend", io[0], "--hicache-mem-layout", io[1]),
            *("--hicache-write-policy", "write_through"),
        ]


VARIANTS = {
    "stock": Variant(plugin=False, host=True),
    "stock-device": Variant(plugin=False, host=False),
    "ours": Variant(plugin=True, host=True),
    "ours-device": Variant(plugin=True, host=False),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    workload = Workload(
        streams=options.streams,
        prompt_tokens=options.prompt_tokens,
        prompts=options.prompts,
        restores=options.restores,
        stream_tokens=options.stream_tokens,
        prefill_tokens=options.prefill_tokens,
    )
    if _fits(workload):
        parser.error(
            f"found {options.prompts} prompts of {options.prompt_tokens:,} tokens, all "
            "of which the device keeps; wanted more than it has room for; raise "
            "--prompts"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Measured] = {}
    stopped, code, name = "", 0, options.variants[0]
    try:
        with stopped_as_interrupt(), ProgressLine() as progress, ExitStack() as alive:
            servers = {
                name: _server(name, options, workload) for name in options.variants
            }
            if options.together:
                for server, _ in servers.values():
                    alive.enter_context(server)
            for name, (server, notes) in servers.items():
                if not options.together:
                    alive.enter_context(server)
                measured[name] = _measured(name, server, notes, workload, progress)
                server.stop()
                _save(options, workload, measured, "")
    except (OSError, RuntimeError) as error:
        stopped, code = f"{name}: {error}", REFUSED
    except KeyboardInterrupt:
        stopped, code = f"{name}: interrupted", INTERRUPTED
    if stopped:
        kept = f"; partial result in {options.out}" if measured else ""
        _save(options, workload, measured, stopped)
        print(f"{stopped}{kept}", file=sys.stderr)
        return code
    result = _save(options, workload, measured, "")
    print((options.out / "decode_gap.md").read_text())
    return _unserved(result)


def _unserved(result: dict[str, Any]) -> int:
    """Exit code 1 where host memory did not restore all."""
    names = [
        name
        for name, of in result["variants"].items()
        if VARIANTS[name].host and of["restored_share"] < 1
    ]
    for name in names:
        share = result["variants"][name]["restored_share"]
        print(
            f"{name}: found {share:.0%} of prompts restored from host memory; wanted "
            "all; raise --prompts or --host-gb",
            file=sys.stderr,
        )
    return 1 if names else 0


def _save(
    options: argparse.Namespace,
    workload: Workload,
    measured: dict[str, Measured],
    stopped: str,
) -> dict[str, Any]:
    """Write what was measured so far; a later call replaces it."""
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "note": options.note,
        "flags": options.flags,
        "stopped": stopped,
        **as_result(workload, measured),
    }
    if measured:
        text = json.dumps(result, indent=1) + "\n"
        (options.out / "decode_gap.json").write_text(text)
        (options.out / "decode_gap.md").write_text(as_markdown(result))
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.decode_gap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--variants", nargs="+", choices=tuple(VARIANTS), default=list(VARIANTS)
    )
    parser.add_argument("--streams", type=_positive, default=8)
    parser.add_argument("--stream-tokens", type=_positive, default=4000, help="at most")
    parser.add_argument("--prompt-tokens", type=_positive, default=32_768)
    parser.add_argument("--prompts", type=_positive, default=5)
    parser.add_argument("--restores", type=_positive, default=20)
    parser.add_argument(
        "--prefill-tokens", type=int, default=0, help="of a cold prompt; 0: none"
    )
    parser.add_argument("--host-gb", type=_positive, default=16)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="the tiny model instead of real shapes"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="start all servers at once; the GPU has to hold them, one has work",
    )
    parser.add_argument("--note", default="", help="goes into the result as it is")
    parser.add_argument("flags", nargs="*", metavar="-- LAUNCH_SERVER_FLAGS")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"found {text}; wanted 1 or more")
    return int(text)


def _server(
    name: str, options: argparse.Namespace, workload: Workload
) -> tuple[SGLangServer, Notes]:
    """The server of a variant, not started, and what its probe writes."""
    variant, work = VARIANTS[name], options.out / "logs" / name
    work.mkdir(parents=True, exist_ok=True)
    model, flags = cached_checkpoint(), []
    if not options.tiny:
        model = write_real_shapes(options.out / "logs" / "real-shapes", model)
        flags = ["--load-format", "dummy", "--skip-tokenizer-init"]
    notes = Notes(steps=work / "steps", calls=work / "calls")
    notes.remove()
    inherited = os.environ.get("PYTHONPATH", "")
    server = SGLangServer(
        model,
        work,
        device=options.device,
        with_plugin=variant.plugin,
        flags=[
            *flags,
            *("--max-total-tokens", str(_device_tokens(variant, workload))),
            *("--max-running-requests", str(workload.streams + 2)),
            "--enable-cache-report",
            *variant.flags(options),
            *options.flags,
        ],
        environment={
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROBE), inherited])),
            "QSA_BENCH_STEPS": str(notes.steps),
            "QSA_BENCH_CALLS": str(notes.calls),
        },
    )
    return server, notes


def _measured(
    name: str,
    server: SGLangServer,
    notes: Notes,
    workload: Workload,
    progress: ProgressLine,
) -> Measured:
    """Measure a server that was started."""

    def told(message: str) -> None:
        progress(f"{name}: {message}")

    server.wait_ready(told)
    return measure(server.url, notes, workload, told)


def _fits(workload: Workload) -> bool:
    """Whether the device would keep all prompts beside idle streams."""
    host = Variant(plugin=True, host=True)
    sent = workload.prompts * workload.prompt_tokens
    return sent <= _device_tokens(host, workload)


def _device_tokens(variant: Variant, workload: Workload) -> int:
    """Room for the streams, and for two prompts or for all that is ever sent."""
    each = workload.prompt_tokens + workload.prompts + 2 * TAIL_TOKENS
    streams = workload.streams * (STREAM_PROMPT_TOKENS + workload.stream_tokens)
    cold = 2 * workload.prefill_tokens
    if variant.host:
        return streams + max(2 * each, workload.prefill_tokens + each)
    tails = workload.restores * (TAIL_TOKENS + workload.restores)
    return streams + workload.prompts * each + tails + cold
