"""Which options of `launch_server` this model, its backend and its tiers can keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.geometry import PAGE_TOKENS

_KV_DTYPES = ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
_DRAFT_PLANES = "draft_k, draft_v and draft_index"
_STATE_PLANES = "ssm, conv, ple_conv and ple_ngram"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked fact; `way_out` is empty when it is as wanted."""

    what: str
    found: str
    wanted: str
    way_out: str = ""

    @property
    def refused(self) -> bool:
        return bool(self.way_out)

    def as_error(self) -> ConfigError:
        return ConfigError(
            refusal(
                found=self.found,
                wanted=self.wanted,
                origin=self.what,
                way_out=self.way_out,
            )
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """An option of `launch_server` that this model, or a tier of it, cannot keep."""

    fields: tuple[str, ...]
    """Names in `ServerArgs`; the options are spelled like them."""
    accepted: tuple[object, ...]
    """Values that are fine; None is "not given"."""
    wanted: str
    way_out: str = "leave the option or the tier out"

    def check(self, server_args: Any) -> Finding:
        values = {name: getattr(server_args, name) for name in self.fields}
        refused = {n: v for n, v in values.items() if v not in self.accepted}
        return Finding(
            " / ".join(_option(name) for name in refused or self.fields),
            ", ".join(f"{value}" for value in (refused or values).values()),
            self.wanted,
            self.way_out if refused else "",
        )


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


_OFF = (None, False)
_ONE = (None, 1)

ALWAYS: tuple[Rule, ...] = (
    Rule(
        ("enable_mixed_chunk",),
        _OFF,
        "decode and prefill in separate batches (the first mixed batch ends a "
        "server of this model, sglang 0.5.23)",
        "leave the option out",
    ),
    Rule(
        ("page_size",),
        (None, PAGE_TOKENS),
        f"{PAGE_TOKENS}, which sglang sets for this model",
        "leave the option out",
    ),
)
WITH_BACKEND: tuple[Rule, ...] = (
    Rule(("disable_radix_cache",), _OFF, "a prefix tree for the tier to extend"),
    Rule(
        ("disaggregation_mode",),
        (None, "null"),
        f"null, since a P/D role publishes no {_STATE_PLANES} to the tier",
    ),
    Rule(
        ("enable_unified_cache_external_linker",),
        _OFF,
        "host memory or LMCache as the tier",
    ),
    Rule(
        ("enable_dp_attention",),
        _OFF,
        "tensor parallel ranks only, which are all that the tier knows",
    ),
    Rule(
        ("attn_dp_size", "attn_cp_size", "dcp_size"),
        _ONE,
        "1, since the tier knows tensor parallel ranks only",
    ),
    Rule(("pp_size",), _ONE, "1, since pipeline stages hold different planes"),
    Rule(
        ("enable_streaming_session",),
        _OFF,
        "ordinary requests, since sglang's LMCache tier has no sessions",
    ),
    Rule(
        ("enable_linear_replayssm", "enable_linear_replayssm_spec"),
        _OFF,
        "complete states, since pending replay records are not in the layout",
    ),
    Rule(
        ("enable_int8_mamba_checkpoint",),
        _OFF,
        "states in the dtype that the layout declares",
    ),
    Rule(
        ("enable_page_major_kv_layout", "enable_unified_memory"),
        _OFF,
        "one buffer per layer",
    ),
    Rule(
        ("enable_memory_saver",),
        _OFF,
        "device pools that stay where the daemon has mapped them",
    ),
    Rule(
        ("kv_cache_dtype",),
        _KV_DTYPES,
        f"one of {', '.join(_KV_DTYPES)} (others keep scales beside the pool)",
        "choose one of these or leave the tier out",
    ),
)
WITH_TIER: tuple[Rule, ...] = (
    Rule(
        ("speculative_algorithm",),
        (None,),
        f"none, since no tier of this version keeps {_DRAFT_PLANES}",
    ),
)
WITH_LMCACHE: tuple[Rule, ...] = (
    Rule(
        ("enable_hierarchical_cache",),
        _OFF,
        "one tier, which --enable-lmcache is",
    ),
)
WITH_HICACHE: tuple[Rule, ...] = (
    Rule(
        ("hicache_mem_layout",),
        (None, "page_first", "page_first_direct"),
        "page_first or page_first_direct, the layouts that recurrent states have",
        "choose one of these",
    ),
    Rule(
        ("hicache_storage_backend",),
        (None, "file", "hf3fs", "seaweedfs", "dynamic"),
        "file, hf3fs, seaweedfs or dynamic (zero-copy backends such as mooncake and "
        "nixl keep nothing of this model in sglang 0.5.23: each backup fails)",
        "choose one of these or leave the option out",
    ),
)

_EXTRA = "--hicache-storage-backend-extra-config"


def record_store_findings(server_args: Any) -> Iterator[Finding]:
    """What the record store asks of HiCache, where it is the `dynamic` backend.

    A configuration in a file of its own (`@FILE`) is read by SGLang alone.
    """
    text = server_args.hicache_storage_backend_extra_config or "{}"
    if text.startswith("@"):
        return
    try:
        extra = json.loads(text)
    except ValueError as error:
        yield Finding(_EXTRA, f"malformed JSON ({error})", "JSON", "correct it")
        return
    if extra.get("class_name") != "RecordStorage":
        return
    layout = server_args.hicache_mem_layout
    yield Finding(
        "--hicache-mem-layout",
        str(layout),
        "page_first_direct, whose pages are in the order of records",
        "" if layout == "page_first_direct" else "set it",
    )
    named = bool(extra.get("directory"))
    yield Finding(
        f"{_EXTRA}, directory",
        str(extra.get("directory")),
        "where the records go",
        "" if named else "name a directory",
    )
    passed = extra.get("hicache_storage_pass_prefix_keys") is True
    yield Finding(
        f"{_EXTRA}, hicache_storage_pass_prefix_keys",
        str(extra.get("hicache_storage_pass_prefix_keys")),
        "true: a checkpoint is stored with all pages before it",
        "" if passed else "set it",
    )
