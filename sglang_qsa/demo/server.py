"""The SGLang server that the demo and the tests start."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sglang_qsa.demo.cpu_engine import child_environment
from sglang_qsa.demo.processes import HOST, ManagedProcess, free_port


class SGLangServer(ManagedProcess):
    """`python -m sglang.launch_server` with the given model.

    Args:
        work_dir: gets the log file; None leaves the output on the terminal.
        device: "cpu" switches the CPU engine on, "cuda" runs as in production.
        flags: added to the command line last, so they win.
        with_plugin: False keeps the plugin out, for a look at stock SGLang.
        environment: added to the inherited one.
    """

    name = "SGLang"

    def __init__(
        self,
        model: Path,
        work_dir: Path | None,
        *,
        device: str = "cpu",
        port: int | None = None,
        flags: Sequence[str] = (),
        with_plugin: bool = True,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 300.0,
    ) -> None:
        super().__init__(work_dir and work_dir / "sglang.log", ready_timeout_s)
        self.port = free_port() if port is None else port
        self._model = model
        self._device = device
        self._flags = list(flags)
        self._with_plugin = with_plugin
        self._extra_environment = dict(environment or {})

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> list[str]:
        options = {
            "--model-path": str(self._model),
            "--device": self._device,
            "--host": HOST,
            "--port": str(self.port),
            # The defaults fill the machine's memory.
            "--max-total-tokens": "16384",
            "--max-mamba-cache-size": "64",
        }
        flat = [part for option in options.items() for part in option]
        return [
            *(sys.executable, "-m", "sglang.launch_server"),
            *flat,
            # It sends an image, for which the tiny model has no preprocessor.
            "--skip-server-warmup",
            *self._flags,
        ]

    def environment(self) -> dict[str, str]:
        environment = super().environment() | self._extra_environment
        if self._device == "cpu":
            environment = child_environment(environment)
        # Everything is on disk; without this the hub is asked for updates.
        environment["HF_HUB_OFFLINE"] = "1"
        if not self._with_plugin:
            # SGLang loads only the plugins named here.
            environment["SGLANG_PLUGINS"] = "none"
        return environment

    def is_ready(self) -> bool:
        """True once the server has answered a one-token request."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        with self._without_leftovers():
            super().stop()

    def kill9(self) -> None:
        with self._without_leftovers():
            super().kill9()

    @contextmanager
    def _without_leftovers(self) -> Iterator[None]:
        """Remove the pools that the CPU engine shared and nobody could remove.

        Torch's own clean-up process is a descendant of the server, so SGLang kills
        it when it shuts down.
        """
        members = [] if self._child is None else self.members()
        yield
        for member in members:
            for segment in Path("/dev/shm").glob(f"torch_{member}_*"):
                segment.unlink(missing_ok=True)
