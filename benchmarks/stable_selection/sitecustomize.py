"""Goes on the server's PYTHONPATH; see `stable_topk`."""

from sglang_qsa.demo.cpu_engine import imports

imports.install({"sglang.kernels.ops.attention.fast_topk": "stable_topk"})
