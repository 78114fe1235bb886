"""Host memory on the memory node of the GPU that copies it.

Upstream (sglang 0.5.23) binds a whole scheduler to its GPU's node where numactl is
installed, or as `--numa-node` says. Then nothing is left to do here; where it could
not, the records at least lie where they are read.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.srt.environ import envs

logger = logging.getLogger(__name__)

SYSTEM = Path("/sys")
MAPS = Path("/proc/self/numa_maps")
_MOST = 0.99
"""Of the bytes: a buffer shares its last page."""


@dataclass(frozen=True, slots=True)
class Node:
    """The memory node of a GPU, on a machine that has several."""

    number: int
    cpus: frozenset[int]
    gpu: str
    """PCI address."""


def node_of(device: torch.device) -> Node | None:
    """The node of a GPU.

    None without a GPU, with `SGLANG_AUTO_NUMA_BIND=0`, on a machine with one node, and
    where the machine does not say.
    """
    if device.type != "cuda" or not envs.SGLANG_AUTO_NUMA_BIND.get():
        return None
    found: Any = torch.cuda.get_device_properties(device)
    return node_at(
        f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    )


def node_at(gpu: str) -> Node | None:
    """The node of the PCI device at `gpu`, as `node_of`."""
    nodes = SYSTEM / "devices/system/node"
    try:
        if len(_numbers(nodes / "has_memory")) < 2:
            return None
        number = int((SYSTEM / "bus/pci/devices" / gpu / "numa_node").read_text())
        # Unknown is -1, which has no folder.
        return Node(number, _numbers(nodes / f"node{number}/cpulist"), gpu)
    except OSError:
        return None


@contextmanager
def near(node: Node | None) -> Iterator[None]:
    """Memory that is touched first in here lies on `node`, if it has room.

    The thread runs there meanwhile, and those that it starts: a page goes to the node
    of the CPU that touches it first. Unlike a memory policy, that needs no SYS_NICE in
    a container, and a policy that the operator has set (numactl) still decides.
    """
    before = None if node is None else _move_to(node)
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def _move_to(node: Node) -> set[int] | None:
    """Run on the node's CPUs. Returns those of before, None if that is not allowed."""
    before = os.sched_getaffinity(0)
    try:
        # An empty set is refused as well.
        os.sched_setaffinity(0, before & node.cpus)
    except OSError as error:
        logger.warning(
            "sglang_qsa: CPUs %s and none of memory node %d (%s), wanted for host "
            "memory near GPU %s: it lies where this process runs; let it run there "
            "(taskset, cpuset, --numa-node), or set SGLANG_AUTO_NUMA_BIND=0",
            _shown(before),
            node.number,
            error.strerror,
            node.gpu,
        )
        return None
    return before


def report(node: Node | None, buffers: Sequence[torch.Tensor]) -> None:
    """Log where touched `buffers` lie, if there is a choice."""
    if node is None:
        return
    try:
        lie = bytes_by_node(buffers)
    except OSError as error:
        logger.warning(
            "sglang_qsa: %s: %s; wanted to say how much of host memory lies on memory "
            "node %d of GPU %s; `numastat -p` may tell",
            MAPS,
            error.strerror,
            node.number,
            node.gpu,
        )
        return
    share = lie[node.number] / max(lie.total(), 1)
    logger.log(
        logging.INFO if share >= _MOST else logging.WARNING,
        "sglang_qsa: %d B of host memory, %.1f %% of it on memory node %d of GPU %s%s",
        sum(buffer.nbytes for buffer in buffers),
        100 * share,
        node.number,
        node.gpu,
        ""
        if share >= _MOST
        else "; the rest is slower to copy: free memory there, or lower --hicache-size",
    )


def bytes_by_node(buffers: Sequence[torch.Tensor]) -> Counter[int]:
    """Bytes on each node of the mappings that hold `buffers`, as Linux counts them."""
    areas = [line.split() for line in MAPS.read_text().splitlines()]
    starts = [int(area[0], 16) for area in areas]
    lie: Counter[int] = Counter()
    for buffer in buffers:
        first = bisect_right(starts, buffer.data_ptr()) - 1
        end = bisect_left(starts, buffer.data_ptr() + buffer.nbytes)
        for area in areas[first:end]:
            facts = dict(fact.split("=", 1) for fact in area[2:] if "=" in fact)
            page = int(facts.get("kernelpagesize_kB", 0)) * 1024
            for name, pages in facts.items():
                if name[0] == "N" and name[1:].isdecimal():
                    lie[int(name[1:])] += int(pages) * page
    return lie


def _numbers(path: Path) -> frozenset[int]:
    """A list of sysfs: `0-3,8`."""
    found: set[int] = set()
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _shown(cpus: set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
