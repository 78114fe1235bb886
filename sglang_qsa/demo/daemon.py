"""The LMCache daemon that the demo and the tests start."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from sglang_qsa.demo.client import get_json
from sglang_qsa.demo.processes import (
    HOST,
    ManagedProcess,
    Progress,
    free_port,
    ignore_progress,
)

PATIENT = {
    "SGLANG_QSA_LOOKUP_TIMEOUT_S": "30",
    "SGLANG_QSA_RETRIEVE_TIMEOUT_S": "30",
    "SGLANG_QSA_HEARTBEAT_INTERVAL_S": "10",
}
"""Environment of a server that must find what it stored.

With the default time-outs a daemon that a busy machine stalls for 2 s is a miss.
"""


class LMCacheDaemon(ManagedProcess):
    """`lmcache server`: holds cached prefixes outside of the SGLang process.

    Args:
        work_dir: gets the log file and the client's configuration.
        device: that of the servers whose memory it maps, "cpu" or "cuda".
        chunk_tokens: granularity of stored K/V.
        l1_gb: memory for cached objects.
        separate_object_groups: without it the daemon cannot hold recurrent state;
            switched off by tests of the refusal.
    """

    name = "LMCache"

    def __init__(
        self,
        work_dir: Path,
        *,
        device: str = "cpu",
        chunk_tokens: int = 64,
        l1_gb: int = 1,
        separate_object_groups: bool = True,
        ready_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(work_dir / "lmcache.log", ready_timeout_s)
        self.port = free_port()
        self.http_port = free_port()
        self._metrics_port = free_port()
        self._device = device
        self._chunk_tokens = chunk_tokens
        self._l1_gb = l1_gb
        self._separate_object_groups = separate_object_groups
        self.client_config = work_dir / "lmcache.yaml"
        self._write_client_config()

    def command(self) -> list[str]:
        groups = (
            "--separate-object-groups"
            if self._separate_object_groups
            else "--no-separate-object-groups"
        )
        options = {
            "--host": HOST,
            "--port": self.port,
            "--http-host": HOST,
            "--http-port": self.http_port,
            "--prometheus-port": self._metrics_port,
            "--chunk-size": self._chunk_tokens,
            "--l1-size-gb": self._l1_gb,
            "--l1-init-size-gb": self._l1_gb,
            "--eviction-policy": "LRU",
            # The other mode copies inside the engine and knows one group only.
            "--supported-transfer-mode": "lmcache_driven",
        }
        flat = [str(part) for option in options.items() for part in option]
        return [sys.executable, "-m", "lmcache.cli.main", "server", *flat, groups]

    def environment(self) -> dict[str, str]:
        environment = super().environment()
        if self._device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        quiet = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
        return environment | quiet

    def is_ready(self) -> bool:
        try:
            return bool(self.status()["is_healthy"])
        except OSError:
            return False

    def status(self) -> Any:
        """The daemon's own report, as JSON."""
        return get_json(f"http://{HOST}:{self.http_port}/status")

    def stored_objects(self) -> int:
        """Objects that are completely written and can be looked up."""
        manager = self.status()["storage_manager"]["l1_manager"]
        return int(manager["total_object_count"] - manager["write_locked_count"])

    def freeze(self) -> None:
        """Stop the daemon's execution without closing its connections."""
        self.signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal_group(signal.SIGCONT)

    def stop(self) -> None:
        # A frozen process cannot handle the request to end.
        if self._child is not None:
            self.thaw()
        super().stop()

    def restart(self, progress: Progress = ignore_progress) -> None:
        """Kill the daemon and start an empty one on the same ports."""
        self.kill9()
        self.start()
        self.wait_ready(progress)

    def _write_client_config(self) -> None:
        self.client_config.parent.mkdir(parents=True, exist_ok=True)
        self.client_config.write_text(
            f"mp_host: {HOST}\n"
            f"mp_port: {self.port}\n"
            "extra_config:\n"
            "  lmcache.mp.mp_transfer_mode: lmcache_driven\n"
        )
