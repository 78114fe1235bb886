"""`--radix-cache-backend sglang_qsa`: build the tree cache of the chosen tier.

Runs in every scheduler process, after the pools exist. What it refuses ends the
process with exit code 2 (`hooks.launch` passes that on).
"""

from __future__ import annotations

import logging
from inspect import signature
from pathlib import Path
from typing import Any

from sglang_qsa import __version__
from sglang_qsa.arena import Arena, open_arena
from sglang_qsa.boundary import Grid, decode_interval
from sglang_qsa.config import QsaConfig, Switch, load_config
from sglang_qsa.errors import ConfigError, QsaError, refusal
from sglang_qsa.fingerprint import fingerprint_checkpoint
from sglang_qsa.geometry import ARCHITECTURE, ServerFacts, build
from sglang_qsa.hooks import HOOKS, active, second_forward
from sglang_qsa.hooks.active import CheckpointRule
from sglang_qsa.hooks.base import require_active
from sglang_qsa.hooks.launch import refuse
from sglang_qsa.tiers.linker.options import is_ours
from sglang_qsa.tiers.zero_copy import register_backends

logger = logging.getLogger(__name__)


def wants_default_route(ctx: Any) -> bool:
    """True for plain `--enable-lmcache` and our linker, with this plugin's model.

    A disabled radix cache publishes nothing, so no tier applies.
    """
    from sglang.srt.runtime_context import get_memory

    return (
        not ctx.disable_radix_cache
        and bool(get_memory().enable_lmcache or _linked())
        and ARCHITECTURE in (ctx.model_config.hf_config.architectures or ())
    )


def create_cache(ctx: Any) -> Any:
    """Factory for SGLang's radix cache registry.

    Args:
        ctx: `TreeCacheBuildContext` of sglang 0.5.23.

    Raises:
        SystemExit: with code 2 when the deployment is refused.
    """
    try:
        return _create(ctx)
    except QsaError as error:
        raise refuse(error) from None


def _create(ctx: Any) -> Any:
    require_active(HOOKS)
    options = load_config()
    arena = _open(ctx, options)
    active.identify(arena.layout)
    cache, store_tokens = _tier(ctx, arena, options)
    rule = _checkpoint_rule(ctx, store_tokens, _snapshots(ctx, options))
    active.use(rule)
    layout = arena.layout
    logger.info(
        "sglang_qsa %s: layout %s, page %d B (%s), checkpoint %d B (%s), store %s, "
        "checkpoints every %d tokens while decoding, up to %d of one prefill forward",
        __version__,
        layout.layout_id,
        layout.page_bytes,
        ", ".join(plane.name for plane in layout.page.planes),
        layout.checkpoint_bytes,
        ", ".join(plane.name for plane in layout.checkpoint.planes),
        _named(ctx, store_tokens),
        rule.decode_interval,
        rule.grid.snapshots,
    )
    return cache


def _tier(ctx: Any, arena: Arena, options: QsaConfig) -> tuple[Any, int]:
    """The tree cache, and the chunk of the tier behind it (0 without one)."""
    from sglang.srt.mem_cache.registry import create_unified_radix_cache
    from sglang.srt.runtime_context import get_memory

    if _linked():
        from sglang_qsa.tiers.linker.tree import LinkedRadixCache

        return create_unified_radix_cache(ctx, cache_class=LinkedRadixCache), 0
    if not get_memory().enable_lmcache:
        from sglang_qsa.tiers.host import strategy
        from sglang_qsa.tiers.tree import AdmittedRadixCache

        strategy.install()
        register_backends()
        return create_unified_radix_cache(ctx, cache_class=AdmittedRadixCache), 0
    cache = _lmcache(ctx, arena, options)
    return cache, cache.lmcache_connector.chunk_size


def _linked() -> bool:
    """Whether this server has the linker of this plugin."""
    from sglang.srt.runtime_context import get_memory

    memory = get_memory()
    return bool(memory.enable_unified_cache_external_linker) and is_ours(
        memory.unified_cache_external_linker_config
    )


def _named(ctx: Any, store_tokens: int) -> str:
    """The tiers behind the tree, for the log."""
    from sglang.srt.runtime_context import get_memory

    if _linked():
        return "records, through the external linker"
    if store_tokens:
        return f"lmcache in chunks of {store_tokens} tokens"
    if not ctx.enable_hierarchical_cache:
        return "none"
    storage = get_memory().hicache_storage_backend
    return f"host memory and {storage}" if storage else "host memory"


def _snapshots(ctx: Any, options: QsaConfig) -> int:
    """How many states one prefill forward may keep.

    Raises:
        ConfigError: two were asked for, and this server's forwards cannot give them.
    """
    if options.second_state == Switch.OFF:
        return 1
    found = second_forward.obstacle(ctx.tp_worker.model_runner)
    if found and options.second_state == Switch.AUTO:
        logger.info("sglang_qsa: a fork costs a forward, because of %s", found)
        return 1
    if found:
        raise ConfigError(
            refusal(
                found=found,
                wanted="forwards that can keep a second state",
                origin="option second_state",
                way_out="set it to auto, or serve without",
            )
        )
    second_forward.install()
    return 2


def _checkpoint_rule(ctx: Any, store_tokens: int, snapshots: int) -> CheckpointRule:
    """Upstream's default interval stands for "no wish": the grid itself is best."""
    from sglang.srt.runtime_context import get_exec, mamba_cache_chunk_size
    from sglang.srt.server_args import ServerArgs

    grid = Grid(
        page_tokens=ctx.params.page_size,
        kernel_tokens=mamba_cache_chunk_size(),
        store_tokens=store_tokens,
        snapshots=snapshots,
    )
    asked = get_exec().mamba.mamba_track_interval
    default = signature(ServerArgs).parameters["mamba_track_interval"].default
    interval = decode_interval(grid, 1 if asked == default else asked)
    return CheckpointRule(grid, interval)


def _open(ctx: Any, options: QsaConfig) -> Arena:
    """Layout from the model config and this server's settings, proven on the pools.

    The settings are the server's, not the pools': a pool that was built otherwise
    must be noticed, not followed.
    """
    from sglang.srt.configs.mamba_utils import mamba2_state_dtype
    from sglang.srt.runtime_context import get_model, get_spec

    model = ctx.model_config
    state = mamba2_state_dtype(model.hf_config)
    layout = build(
        model.hf_config.to_dict(),
        ServerFacts(
            tp_size=ctx.tp_size,
            page_size=ctx.params.page_size,
            kv_cache_dtype=str(ctx.tp_worker.model_runner.kv_cache_dtype),
            qsa_indexer_dtype=get_model().qsa_indexer_dtype,
            mamba_ssm_dtype=str(state.temporal),
            mamba_conv_dtype=str(state.conv),
            draft=bool(
                ctx.enable_hierarchical_cache and get_spec().speculative_algorithm
            ),
            image_input=bool(model.is_multimodal),
            weights_fingerprint=_weights_fingerprint(ctx, options),
        ),
        origin=str(model.model_path),
    )
    return open_arena(
        kv_pool=ctx.params.token_to_kv_pool_allocator.get_kvcache(),
        req_to_token_pool=ctx.params.req_to_token_pool,
        draft_pools=ctx.params.mtp_draft_device_pools,
        layout=layout,
    )


def _weights_fingerprint(ctx: Any, options: QsaConfig) -> str:
    """Declared by the user, or read from the checkpoint this server loaded."""
    from sglang.srt.runtime_context import get_model

    if options.weights_fingerprint:
        return options.weights_fingerprint
    if get_model().load_format == "dummy":
        return "dummy"
    model_path = ctx.model_config.model_path
    directory = Path(model_path)
    if not directory.is_dir():
        from huggingface_hub import snapshot_download

        directory = Path(
            snapshot_download(
                model_path, revision=ctx.model_config.revision, local_files_only=True
            )
        )
    return fingerprint_checkpoint(directory)


def _lmcache(ctx: Any, arena: Arena, options: QsaConfig) -> Any:
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.runtime_context import get_memory

    from sglang_qsa.tiers.lmcache.cache import (
        NamedModel,
        QsaLMCacheRadixCache,
        lmcache_model_name,
    )

    ctx.params.tree_components = (ComponentType.FULL, ComponentType.MAMBA)
    model = ctx.model_config
    return QsaLMCacheRadixCache(
        ctx.params,
        arena=arena,
        options=options,
        model_config=NamedModel(
            lmcache_model_name(model.model_path, arena.layout.layout_id),
            model.attention_arch,
            model.hf_config,
        ),
        tp_size=ctx.tp_size,
        tp_rank=ctx.tp_rank,
        lmcache_config_file=get_memory().lmcache_config_file,
        forward_stream=ctx.tp_worker.model_runner.forward_stream,
    )
