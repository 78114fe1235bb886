"""Launches that must not come up: one line, exit code 2, no traceback.

The real `launch_server` each time. What can be known without the pools is refused
in the launching process; the rest in the scheduler, which costs a model load.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import HOST, StartFailed
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.hooks import HOOKS, Binding, Hook
from sglang_qsa.hooks.kernels import SCORE, SCORE_ROWS, SPARSE_DECODE, TOPK

pytestmark = pytest.mark.server

FOR_A_GPU = (TOPK, SCORE, SCORE_ROWS, SPARSE_DECODE)
BROKEN = Path(__file__).parent / "broken"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LMCacheDaemon]:
    with LMCacheDaemon(tmp_path_factory.mktemp("daemon")) as running:
        running.wait_ready()
        yield running


def refusal_of(
    model: Path,
    folder: Path,
    flags: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> str:
    """The one line that a launch with these flags prints before it ends."""
    server = SGLangServer(model, folder, flags=flags, environment=environment)
    with server, pytest.raises(StartFailed) as failure:
        server.wait_ready()
    log = failure.value.log
    lines = [line for line in log.splitlines() if line.startswith("sglang_qsa: ")]
    assert failure.value.exit_code == 2, log
    assert len(lines) == 1, log
    # SGLang itself logs one where it cannot apply a hook.
    assert log.count("Traceback") == log.count("Failed to apply hooks to"), log
    assert all(word in lines[0] for word in ("found", "wanted")), lines[0]
    return lines[0]


def lmcache_flags(daemon: LMCacheDaemon) -> list[str]:
    return ["--enable-lmcache", "--lmcache-config-file", str(daemon.client_config)]


def test_unknown_option(tiny_model: Path, tmp_path: Path) -> None:
    options = tmp_path / "qsa.json"
    options.write_text(json.dumps({"lookup_timeout": 3}))
    line = refusal_of(tiny_model, tmp_path, [], {"SGLANG_QSA_CONFIG": str(options)})
    assert "'lookup_timeout'" in line
    assert str(options) in line


def test_mixed_chunk_case_28(tiny_model: Path, tmp_path: Path) -> None:
    line = refusal_of(tiny_model, tmp_path, ["--enable-mixed-chunk"])
    assert "--enable-mixed-chunk" in line


def test_disaggregation_role_case_7(
    tiny_model: Path, tmp_path: Path, daemon: LMCacheDaemon
) -> None:
    flags = [*lmcache_flags(daemon), "--disaggregation-mode", "prefill"]
    line = refusal_of(tiny_model, tmp_path, flags)
    for plane in ("ssm", "conv", "ple_conv", "ple_ngram"):
        assert plane in line


def test_another_architecture(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (model / "config.json").write_text(json.dumps(config))
    flags = ["--enable-lmcache", "--radix-cache-backend", "sglang_qsa"]
    assert "Qwen3ForCausalLM" in refusal_of(model, tmp_path, flags)


def test_unreachable_daemon(tiny_model: Path, tmp_path: Path) -> None:
    never_started = LMCacheDaemon(tmp_path)
    line = refusal_of(tiny_model, tmp_path, lmcache_flags(never_started))
    assert str(never_started.port) in line
    assert "lmcache server" in line


def test_daemon_of_another_chunk_size(tiny_model: Path, tmp_path: Path) -> None:
    with LMCacheDaemon(tmp_path, chunk_tokens=96) as daemon:
        daemon.wait_ready()
        line = refusal_of(tiny_model, tmp_path, lmcache_flags(daemon))
    assert "found 96" in line
    assert "--chunk-size" in line


def test_daemon_of_another_version(
    tiny_model: Path, tmp_path: Path, daemon: LMCacheDaemon
) -> None:
    """The daemon's HTTP server reports 0.5.5 (injected); its protocol tells nothing."""
    with _version_server("0.5.5") as url:
        line = refusal_of(
            tiny_model,
            tmp_path,
            lmcache_flags(daemon),
            {"SGLANG_QSA_LMCACHE_HTTP_URL": url},
        )
    assert "found 0.5.5" in line
    assert "lmcache server` 0.5.6" in line


@contextmanager
def _version_server(version: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(version).encode())

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


def test_daemon_without_separate_object_groups_case_25(
    tiny_model: Path, tmp_path: Path
) -> None:
    with LMCacheDaemon(tmp_path, separate_object_groups=False) as daemon:
        daemon.wait_ready()
        line = refusal_of(tiny_model, tmp_path, lmcache_flags(daemon))
    assert "--separate-object-groups" in line


def broken_in_turn() -> list[Hook | Binding]:
    """One hook of the launcher, one of the scheduler, one name of each owner; all of
    them in `make campaign`: a launch takes seconds, and tests/hooks breaks each alone.

    Names that are rebound for a GPU are not looked for without one.
    """
    needed = [hook for hook in HOOKS if hook not in FOR_A_GPU]
    if os.environ.get("QSA_TEST_EVERY_HOOK"):
        return needed
    return list({place(hook): hook for hook in needed}.values())


def place(hook: Hook | Binding) -> str:
    """Where a hook is missed. Names of one owner have ids that begin alike."""
    if isinstance(hook, Binding):
        return hook.id.rpartition("-")[0]
    in_launcher = hook.function.__module__.endswith(".launch")
    return "launcher" if in_launcher else "scheduler"


@pytest.mark.parametrize("hook", broken_in_turn(), ids=lambda hook: hook.id)
def test_each_hook_broken(
    hook: Hook | Binding, tiny_model: Path, tmp_path: Path, daemon: LMCacheDaemon
) -> None:
    line = refusal_of(
        tiny_model,
        tmp_path,
        lmcache_flags(daemon),
        {"PYTHONPATH": str(BROKEN), "QSA_TEST_BROKEN_TARGET": hook.target},
    )
    assert hook.id in line
