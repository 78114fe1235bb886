"""Starts a server whose ring of pending index keys is wide enough for MTP.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install(
    {
        "sglang.srt.layers.attention.qsa.metadata": "widen_ring",
        "sglang.srt.mem_cache.qsa_kv_pool": "widen_pool",
    }
)
