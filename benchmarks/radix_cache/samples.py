"""One measured request, and which tier served what of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEVICE, HOST, STORAGE, EXTERNAL, UNSPLIT, COMPUTED = (
    "device",
    "host",
    "storage",
    "external",
    "cached, tier not reported",
    "computed",
)
SOURCES = (DEVICE, HOST, STORAGE, EXTERNAL, UNSPLIT, COMPUTED)
TIERS = (DEVICE, HOST, STORAGE, EXTERNAL)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself that the report needs."""

    version: str
    launch_command: str
    tiers: dict[str, str]
    """The tiers that it was started with, and what each one is."""
    most_tokens: int
    """Longest prompt with its answer."""
    tier_of: dict[str, str]
    """The tier for each source that `cached_tokens_details` may name."""


def read_facts(info: Mapping[str, Any]) -> Facts:
    """Facts out of `/server_info`.

    SGLang reports what LMCache serves as storage, and what an external linker loads
    as host memory; both are `external` here.
    """
    tiers: dict[str, str] = {}
    tier_of = {tier: tier for tier in (DEVICE, HOST, STORAGE)}
    if not info.get("disable_radix_cache"):
        tiers[DEVICE] = f"prefix tree ({info.get('radix_cache_backend') or 'default'})"
    if info.get("enable_hierarchical_cache"):
        tiers[HOST] = f"HiCache ({info.get('hicache_write_policy')})"
    if storage := info.get("hicache_storage_backend"):
        tiers[STORAGE] = str(storage)
    if info.get("enable_unified_cache_external_linker"):
        linker = info.get("unified_cache_external_linker_backend")
        tiers[EXTERNAL] = f"external linker ({linker})"
        tier_of[HOST] = EXTERNAL
    if info.get("enable_lmcache"):
        tiers[EXTERNAL] = "LMCache"
        tier_of[STORAGE] = EXTERNAL
    limits = [info.get("max_req_input_len"), info.get("max_total_num_tokens")]
    return Facts(
        version=str(info["version"]),
        launch_command=str(info.get("launch_command", "")),
        tiers=tiers,
        tier_of=tier_of,
        most_tokens=min((int(limit) for limit in limits if limit), default=2**31),
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the client saw it and as the server accounts for it."""

    number: int
    """Of the turn in the order of sending; equal for both servers."""
    repeat: int
    kind: str
    session: int
    prompt_tokens: int
    answer_tokens: int
    reusable_tokens: int
    sources: dict[str, int]
    """Prompt tokens by where they came from; sums up to `prompt_tokens`."""
    started_s: float
    """On the clock of its server, which runs only while that is measured."""
    ttft_s: float
    seconds: float
    gaps: list[tuple[float, int]]
    """Seconds between two events of the answer, and the tokens of the later one."""
    prompt_digest: int
    output_digest: int
    retractions: int

    @property
    def deepest(self) -> str:
        """The last tier that had to be asked; `computed` where none served."""
        served = [tier for tier in (*TIERS, UNSPLIT) if self.sources[tier]]
        return served[-1] if served else COMPUTED

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens - self.sources[COMPUTED]


def sources_of(meta: Mapping[str, Any], tier_of: Mapping[str, str]) -> dict[str, int]:
    """Prompt tokens by source, out of an answer's `meta_info`."""
    details = meta.get("cached_tokens_details") or {}
    found = dict.fromkeys(SOURCES, 0)
    for reported, tier in tier_of.items():
        found[tier] += details.get(reported) or 0
    cached = max(meta.get("cached_tokens") or 0, sum(found.values()))
    found[UNSPLIT] = cached - sum(found.values())
    found[COMPUTED] = meta["prompt_tokens"] - cached
    return found
