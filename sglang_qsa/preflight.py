"""Go or refuse: what can be known before the model is loaded.

`sglang-qsa check` prints every finding; a launch runs the same checks in the
launching process and stops at the first refusal, before the port opens. What only
live pools or the daemon's behaviour can show is checked where they are built
(`arena`, `tiers.lmcache.prove`).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
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

    option: str
    refuses: Callable[[Any], bool]
    wanted: str
    way_out: str = "leave the option or the tier out"

    def check(self, server_args: Any) -> Finding:
        refused = self.refuses(server_args)
        return Finding(
            self.option,
            "set" if refused else "not in the way",
            self.wanted,
            self.way_out if refused else "",
        )


_ALWAYS = (
    Rule(
        "--enable-mixed-chunk",
        lambda a: a.enable_mixed_chunk,
        "decode and prefill in separate batches (the first mixed batch ends a "
        "server of this model, sglang 0.5.23)",
        "leave the option out",
    ),
    Rule(
        "--page-size",
        lambda a: a.page_size not in (None, PAGE_TOKENS),
        f"{PAGE_TOKENS}, which sglang sets for this model",
        "leave the option out",
    ),
)
_WITH_TIER = (
    Rule(
        "--disable-radix-cache",
        lambda a: a.disable_radix_cache,
        "a prefix tree for the tier to extend",
    ),
    Rule(
        "--disaggregation-mode",
        lambda a: a.disaggregation_mode not in (None, "null"),
        f"null, since a P/D role publishes no {_STATE_PLANES} to the tier",
    ),
    Rule(
        "--enable-hierarchical-cache",
        lambda a: a.enable_lmcache and a.enable_hierarchical_cache,
        "one tier beside --enable-lmcache",
    ),
    Rule(
        "--enable-unified-cache-external-linker",
        lambda a: a.enable_unified_cache_external_linker,
        "one tier beside the tree cache backend",
    ),
    Rule(
        "--speculative-algorithm",
        lambda a: a.speculative_algorithm is not None,
        f"none, since the LMCache tier of sglang registers no {_DRAFT_PLANES}",
    ),
    Rule(
        "--attn-dp-size / --enable-dp-attention",
        lambda a: a.enable_dp_attention or (a.attn_dp_size or 1) > 1,
        "1, since the tier knows tensor parallel ranks only",
    ),
    Rule(
        "--dcp-size / --attn-cp-size",
        lambda a: (a.dcp_size or 1) > 1 or (a.attn_cp_size or 1) > 1,
        "1, since the tier knows tensor parallel ranks only",
    ),
    Rule(
        "--pp-size",
        lambda a: (a.pp_size or 1) > 1,
        "1, since pipeline stages hold different planes",
    ),
    Rule(
        "--enable-streaming-session",
        lambda a: a.enable_streaming_session,
        "ordinary requests, since the LMCache tier of sglang has no sessions",
    ),
    Rule(
        "--enable-linear-replayssm / --enable-linear-replayssm-spec",
        lambda a: a.enable_linear_replayssm or a.enable_linear_replayssm_spec,
        "complete states, since pending replay records are not in the layout",
    ),
    Rule(
        "--enable-int8-mamba-checkpoint",
        lambda a: a.enable_int8_mamba_checkpoint,
        "states in the dtype that the layout declares",
    ),
    Rule(
        "--enable-page-major-kv-layout / --enable-unified-memory",
        lambda a: a.enable_page_major_kv_layout or a.enable_unified_memory,
        "one buffer per layer",
    ),
    Rule(
        "--kv-cache-dtype",
        lambda a: a.kv_cache_dtype not in _KV_DTYPES,
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
    config = _model_config(server_args)
    if config is None or config.get("architectures") != [ARCHITECTURE]:
        if selected:
            yield _foreign(server_args, config)
        return
    yield _version("sglang")
    for rule in _ALWAYS:
        yield rule.check(server_args)
    if not (selected or server_args.enable_lmcache):
        return
    yield _tier_chosen(server_args)
    for rule in _WITH_TIER:
        yield rule.check(server_args)
    options = load_config()
    layout = layout_of(server_args, config, options)
    yield Finding("layout of this server", layout.layout_id, "one that can be built")
    yield _version("lmcache")
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
