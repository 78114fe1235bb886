"""A real Mooncake Store on the loopback interface: a master, and a client with memory.

The memory belongs to a process of its own, so that it outlives the servers.
"""

from __future__ import annotations

import socket
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from sglang_qsa.demo.processes import HOST, ManagedProcess, free_port

_MEGABYTES = 256


def program(name: str) -> str:
    """The path of one of the package's binaries."""
    spec = find_spec("mooncake")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / name)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


class MooncakeMaster(ManagedProcess):
    """`mooncake_master`: knows which object is where."""

    name = "mooncake_master"

    def __init__(self, work_dir: Path) -> None:
        super().__init__(work_dir / "mooncake_master.log", 30.0)
        self.port = free_port()
        self.metrics_port = free_port()

    def command(self) -> list[str]:
        return [
            program("mooncake_master"),
            f"--rpc_address={HOST}",
            f"--rpc_port={self.port}",
            f"--metrics_host={HOST}",
            f"--metrics_port={self.metrics_port}",
            # Milliseconds for which an object that was looked up cannot be removed.
            "--default_kv_lease_ttl=500",
        ]

    def is_ready(self) -> bool:
        return answers(self.port) and answers(self.metrics_port)

    def object_names(self) -> list[str]:
        """All that is completely written, without what SGLang tries the store with."""
        url = f"http://{HOST}:{self.metrics_port}/get_all_keys"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
        return [name for name in text.split() if "warmup_key" not in name]


class MooncakeMemory(ManagedProcess):
    """`mooncake_client`: memory for objects of any server."""

    name = "mooncake_client"

    def __init__(self, work_dir: Path, master: MooncakeMaster) -> None:
        super().__init__(work_dir / "mooncake_client.log", 30.0)
        self.port = free_port()
        self._master = master

    def command(self) -> list[str]:
        return [
            program("mooncake_client"),
            f"--host={HOST}",
            f"--port={self.port}",
            f"--master_server_address={HOST}:{self._master.port}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--global_segment_size={_MEGABYTES} MB",
        ]

    def is_ready(self) -> bool:
        return answers(self.port)


def client_config(master: MooncakeMaster) -> dict[str, object]:
    """HiCache's extra configuration for a server without memory of its own."""
    return {
        "master_server_address": f"{HOST}:{master.port}",
        "metadata_server": "P2PHANDSHAKE",
        "local_hostname": HOST,
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
    }
