"""Go or refuse: what can be known before the model is loaded.

`sglang-qsa check` prints every finding; a launch runs the same checks in the
launching process and stops at the first refusal, before the port opens. What only
live pools or the daemon's behaviour can show is checked where they are built
(`arena`, `tiers.lmcache.prove`).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_qsa.config import QsaConfig, load_config
from sglang_qsa.errors import ConfigError
from sglang_qsa.geometry import (
    ARCHITECTURE,
    ServerFacts,
    build,
    read_model_config,
)
from sglang_qsa.launch_rules import (
    ALWAYS,
    NO_LINKER,
    WITH_BACKEND,
    WITH_HICACHE,
    WITH_LMCACHE,
    WITH_TIER,
    Finding,
    Rule,
    linker_finding,
    record_store_findings,
    zero_copy_findings,
)
from sglang_qsa.layout import Layout
from sglang_qsa.manifest import verify_manifest

BACKEND_NAME = "sglang_qsa"
PINS = {"sglang": "0.5.23", "lmcache": "0.5.6"}


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
    for rule in ALWAYS:
        yield rule.check(server_args)
    if not (selected or server_args.enable_lmcache or _linked(server_args)):
        return
    yield from _of_the_backend(server_args, config)


def _of_the_backend(server_args: Any, config: dict[str, Any]) -> Iterator[Finding]:
    """What the plugin's tree cache needs, with LMCache behind it or alone."""
    lmcache = bool(server_args.enable_lmcache)
    if lmcache:
        yield _version("lmcache")
    yield _unchanged_upstream()
    yield _hooks_in_place()
    for rule in _rules(server_args):
        yield rule.check(server_args)
    yield from _of_the_storage(server_args)
    options = load_config()
    layout = layout_of(server_args, config, options)
    yield Finding("layout of this server", layout.layout_id, "one that can be built")
    if lmcache:
        from sglang_qsa.tiers.lmcache.probe import daemon_facts

        for fact in daemon_facts(server_args.lmcache_config_file, options):
            yield Finding(*fact)


def _rules(server_args: Any) -> tuple[Rule, ...]:
    """The rules of the tier that is asked for; without one, those of the tree."""
    if server_args.enable_lmcache:
        return (NO_LINKER, *WITH_BACKEND, *WITH_TIER, *WITH_LMCACHE)
    if server_args.enable_hierarchical_cache:
        return (NO_LINKER, *WITH_BACKEND, *WITH_HICACHE)
    if _linked(server_args):
        return (*WITH_BACKEND, *WITH_TIER)
    return (NO_LINKER, *WITH_BACKEND)


def _of_the_storage(server_args: Any) -> Iterator[Finding]:
    yield from record_store_findings(server_args)
    yield from zero_copy_findings(server_args)
    if _linked(server_args):
        yield linker_finding(server_args)


def _linked(server_args: Any) -> bool:
    """The linker, which upstream has without another tree cache only."""
    linker = bool(server_args.enable_unified_cache_external_linker)
    return linker and server_args.radix_cache_backend is None


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
            draft=_keeps_drafts(server_args),
            weights_fingerprint=options.weights_fingerprint,
        ),
        origin=str(server_args.model_path),
    )


def _keeps_drafts(server_args: Any) -> bool:
    """Whether draft rows are part of a page; without a tier they never leave it."""
    return bool(
        server_args.speculative_algorithm and server_args.enable_hierarchical_cache
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


def _version(distribution: str) -> Finding:
    wanted = PINS[distribution]
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    way_out = "" if found == wanted else f"pip install {distribution}=={wanted}"
    return Finding(f"package {distribution}", found, wanted, way_out)
