"""Which options of `launch_server` this model, its backend and its tiers can keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.geometry import PAGE_TOKENS
from sglang_qsa.tiers.linker.options import CLASS, MODULE, LinkerOptions, is_ours

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
NO_LINKER = Rule(
    ("enable_unified_cache_external_linker",),
    _OFF,
    "host memory or LMCache as the tier",
)
WITH_BACKEND: tuple[Rule, ...] = (
    Rule(("disable_radix_cache",), _OFF, "a prefix tree for the tier to extend"),
    Rule(
        ("disaggregation_mode",),
        (None, "null"),
        f"null, since a P/D role publishes no {_STATE_PLANES} to the tier",
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
        ("speculative_algorithm",),
        (None, "NEXTN", "EAGLE"),
        "none, or the model's own MTP layer (NEXTN), whose rows move with their page",
        "choose one of these",
    ),
    Rule(
        ("hicache_mem_layout",),
        (None, "page_first", "page_first_direct"),
        "page_first or page_first_direct, the layouts that recurrent states have",
        "choose one of these",
    ),
    Rule(
        ("hicache_storage_backend",),
        (None, "dynamic", "file", "hf3fs", "mooncake", "nixl", "seaweedfs"),
        "dynamic, file, hf3fs, mooncake, nixl or seaweedfs (other zero-copy backends "
        "keep nothing of this model in sglang 0.5.23: each backup fails)",
        "choose one of these or leave the option out",
    ),
)


def linker_finding(server_args: Any) -> Finding:
    """Upstream's own linkers refuse this model when the pools are built."""
    backend = server_args.unified_cache_external_linker_backend
    config = server_args.unified_cache_external_linker_config
    named = config if isinstance(config, dict) else {}
    ours = backend == "dynamic" and is_ours(config)
    if ours:
        LinkerOptions.parse(named.get("linker_extra_config") or {})
    return Finding(
        "--unified-cache-external-linker-backend",
        f"{backend} {named.get('linker', '')}".rstrip(),
        f"dynamic with {CLASS} of {MODULE} (other linkers have no place for "
        "ple_conv and ple_ngram)",
        "" if ours else "name this linker or leave the option out",
    )


_PACKAGES = {
    "mooncake": "mooncake-transfer-engine (mooncake-transfer-engine-non-cuda without "
    "a GPU)",
    "nixl": "nixl",
}
"""By module, which is called like the backend: what to install."""


def zero_copy_findings(server_args: Any) -> Iterator[Finding]:
    """What `mooncake` and `nixl` need; HiCache imports them with the model loaded."""
    name = server_args.hicache_storage_backend
    if name not in _PACKAGES:
        return
    installed = find_spec(name) is not None
    yield Finding(
        f"--hicache-storage-backend {name}",
        "its package" if installed else f"no package {name}",
        "its package",
        "" if installed else f"pip install {_PACKAGES[name]}",
    )
    drafts = bool(server_args.speculative_algorithm)
    yield Finding(
        f"--hicache-storage-backend {name}, --speculative-algorithm",
        str(server_args.speculative_algorithm),
        "none: the backend knows K and V of a page, and has no name for draft rows",
        "use the record store (dynamic) or leave speculation out" if drafts else "",
    )
    extra = _extra_config(server_args)
    if name == "nixl" and extra is not None:
        direct = extra.get("use_direct_io")
        yield Finding(
            f"{_EXTRA}, use_direct_io",
            str(direct),
            "false: the pieces of a checkpoint are not whole blocks of a disk",
            "" if direct is False else "set it",
        )


_EXTRA = "--hicache-storage-backend-extra-config"


def _extra_config(server_args: Any) -> dict[str, Any] | None:
    """HiCache's extra configuration; None where a file has it, which SGLang reads.

    Raises:
        ConfigError: it is not a JSON object.
    """
    text = server_args.hicache_storage_backend_extra_config or "{}"
    if text.startswith("@"):
        return None
    try:
        extra = json.loads(text)
    except ValueError as error:
        found = f"malformed JSON ({error})"
        raise Finding(_EXTRA, found, "JSON", "correct it").as_error() from error
    if not isinstance(extra, dict):
        found = type(extra).__name__
        raise Finding(_EXTRA, found, "a JSON object", "correct it").as_error()
    return extra


def record_store_findings(server_args: Any) -> Iterator[Finding]:
    """What the record store asks of HiCache, where it is the `dynamic` backend."""
    if server_args.hicache_storage_backend != "dynamic":
        return
    extra = _extra_config(server_args)
    if extra is None or extra.get("class_name") != "RecordStorage":
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
