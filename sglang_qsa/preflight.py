"""Go or refuse: what can be known before the model is loaded.

`sglang-qsa check` prints every finding; a launch runs the same checks in the
launching process and stops at the first refusal, before the port opens. What only
live pools or the daemon's behaviour can show is checked where they are built
(`arena`, `tiers.lmcache.prove`).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_qsa.config import QsaConfig, load_config
from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.geometry import (
    ARCHITECTURE,
    PAGE_TOKENS,
    ServerFacts,
    build,
    read_model_config,
)
from sglang_qsa.layout import Layout
from sglang_qsa.manifest import verify_manifest

BACKEND_NAME = "sglang_qsa"
PINS = {"sglang": "0.5.23", "lmcache": "0.5.6"}

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

_ALWAYS = (
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
_WITH_TIER = (
    Rule(("disable_radix_cache",), _OFF, "a prefix tree for the tier to extend"),
    Rule(
        ("disaggregation_mode",),
        (None, "null"),
        f"null, since a P/D role publishes no {_STATE_PLANES} to the tier",
    ),
    Rule(
        ("enable_hierarchical_cache", "enable_unified_cache_external_linker"),
        _OFF,
        "one tier, which --enable-lmcache is",
    ),
    Rule(
        ("speculative_algorithm",),
        (None,),
        f"none, since sglang's LMCache tier registers no {_DRAFT_PLANES}",
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


def check_launch(server_args: Any) -> None:
    """Raise the first refusal for `server_args`; silent for other models.

    Args:
        server_args: SGLang's `ServerArgs`, before resolution.

    Raises:
        QsaError: the launch must not go on.
    """
    for finding in findings(server_args):
        if finding.refused:
            raise finding.as_error()


def findings(server_args: Any) -> Iterator[Finding]:
    """Every check that applies, in the order a launch makes them.

    Raises:
        QsaError: a check could not be made at all (unreadable config, bad option).
    """
    selected = server_args.radix_cache_backend == BACKEND_NAME
    try:
        config = _model_config(server_args)
    except ConfigError:
        if selected:
            raise
        return  # not ours to judge: upstream reports its own models' configs
    if config is None or config.get("architectures") != [ARCHITECTURE]:
        if selected:
            yield _foreign(server_args, config)
        return
    yield _version("sglang")
    for rule in _ALWAYS:
        yield rule.check(server_args)
    if not (selected or server_args.enable_lmcache):
        return
    yield _version("lmcache")
    yield _unchanged_upstream()
    yield _hooks_in_place()
    yield _tier_chosen(server_args)
    for rule in _WITH_TIER:
        yield rule.check(server_args)
    options = load_config()
    layout = layout_of(server_args, config, options)
    yield Finding("layout of this server", layout.layout_id, "one that can be built")
    from sglang_qsa.tiers.lmcache.probe import daemon_facts

    for fact in daemon_facts(server_args.lmcache_config_file, options):
        yield Finding(*fact)


def layout_of(server_args: Any, config: dict[str, Any], options: QsaConfig) -> Layout:
    """The layout this launch will have, as far as raw arguments tell.

    Raises:
        ConfigError: the config and the arguments do not fit together.
    """
    return build(
        config,
        ServerFacts(
            tp_size=server_args.tp_size,
            kv_cache_dtype=server_args.kv_cache_dtype,
            qsa_indexer_dtype=server_args.qsa_indexer_dtype,
            mamba_ssm_dtype=server_args.mamba_ssm_dtype,
            weights_fingerprint=options.weights_fingerprint,
        ),
        origin=str(server_args.model_path),
    )


def _model_config(server_args: Any) -> dict[str, Any] | None:
    """The model's config.json, or None when it is not on this machine."""
    path = Path(server_args.model_path)
    if path.is_dir():
        return read_model_config(path) if (path / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(
            server_args.model_path, "config.json", revision=server_args.revision
        )
    except HFValidationError:
        return None
    return read_model_config(Path(cached)) if isinstance(cached, str) else None


def _foreign(server_args: Any, config: dict[str, Any] | None) -> Finding:
    if config is None:
        return Finding(
            f"model {server_args.model_path}",
            "no config.json on this machine",
            f"the config of a {ARCHITECTURE}",
            "download the model first, or correct --model-path",
        )
    return Finding(
        f"model {server_args.model_path}",
        f"architectures {config.get('architectures')!r}",
        f"['{ARCHITECTURE}']",
        f"leave --radix-cache-backend {BACKEND_NAME} out",
    )


def _unchanged_upstream() -> Finding:
    """The sources behind the hooks are the ones they were written against."""
    problems = verify_manifest()
    return Finding(
        "patches/manifest.toml",
        problems[0] if problems else "as recorded",
        "the hooked functions of the pinned versions",
        "reinstall the pinned versions without changes" if problems else "",
    )


def _hooks_in_place() -> Finding:
    from sglang_qsa.hooks import HOOKS
    from sglang_qsa.hooks.base import require_active

    require_active(HOOKS)
    return Finding("hooks of sglang_qsa", f"{len(HOOKS)} in place", "all in place")


def _tier_chosen(server_args: Any) -> Finding:
    chosen = bool(server_args.enable_lmcache)
    return Finding(
        f"--radix-cache-backend {BACKEND_NAME}",
        "--enable-lmcache" if chosen else "no tier",
        "--enable-lmcache",
        "" if chosen else "add --enable-lmcache or leave the backend out",
    )


def _version(distribution: str) -> Finding:
    wanted = PINS[distribution]
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    way_out = "" if found == wanted else f"pip install {distribution}=={wanted}"
    return Finding(f"package {distribution}", found, wanted, way_out)
