"""`sglang-qsa demo --serve`: the tiny model on the real server, to play with."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.report import ProgressLine
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import lmcache_flags
from sglang_qsa.demo.tiny_model import cached_checkpoint

_HINT = """\
The tiny model (random weights) will be served on {url}; Ctrl-C stops it. Then try:
  curl {url}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "tiny", "prompt": "Hello", "max_tokens": 8}}'"""


def run(device: str, port: int, flags: Sequence[str], work_dir: Path | None) -> int:
    """Serve in the foreground until Ctrl-C, then stop everything.

    Args:
        flags: for `launch_server`; empty starts a daemon and the LMCache tier.
    Returns:
        0 after Ctrl-C, otherwise the exit code of the server.
    Raises:
        StartFailed: the daemon did not start.
    """
    logs = work_dir or Path(tempfile.mkdtemp(prefix="sglang-qsa-serve-"))
    with ExitStack() as running:
        with ProgressLine() as progress:
            progress("preparing the tiny model")
            model = cached_checkpoint()
            if not flags:
                daemon = running.enter_context(LMCacheDaemon(logs, device=device))
                daemon.wait_ready(progress)
                flags = lmcache_flags(daemon)
        server = SGLangServer(model, None, device=device, port=port, flags=flags)
        print(_HINT.format(url=server.url), file=sys.stderr, flush=True)
        running.enter_context(server)
        try:
            return server.child.wait()
        except KeyboardInterrupt:
            return 0
