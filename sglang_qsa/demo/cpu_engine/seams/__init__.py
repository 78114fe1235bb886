"""One module per place where SGLang or LMCache needs help on a CPU.

`SEAMS` maps an upstream module to the seam that patches it. Every seam defines
`apply(module)`. Line numbers are those of sglang 0.5.23, lmcache 0.5.6 and
torchvision 0.28.0.
"""

from __future__ import annotations

_POOL_HOST = "sglang.srt.mem_cache.pool_host"

SEAMS: dict[str, str] = {
    upstream: f"{__name__}.{seam}"
    for upstream, seam in {
        "torchvision.extension": "torchvision_ops",
        "sglang.kernels.ops.attention.fla.layernorm_gated": "gated_norm",
        "sglang.kernels.ops.elementwise.elementwise": "shared_expert_gate",
        "sglang.kernels.ops.mamba.mamba_state_scatter_triton": "state_tracking",
        "sglang.srt.arg_groups.mamba_hook": "extra_buffer",
        "sglang.srt.layers.attention.qsa.kernel": "index_keys",
        "sglang.srt.layers.attention.qsa.qsa_indexer": "indexer",
        "sglang.srt.managers.schedule_batch": "pinned_mask",
        "sglang.srt.mem_cache.memory_pool_host": "host_copies",
        "sglang.srt.utils.common": "operators",
        f"{_POOL_HOST}.base": "host_pinning",
        f"{_POOL_HOST}.mamba": "host_copies",
        f"{_POOL_HOST}.mha": "host_copies",
        "lmcache.v1.platform.devices.cpu.shm": "shared_storage",
    }.items()
}
