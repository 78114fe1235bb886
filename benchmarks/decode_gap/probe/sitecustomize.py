"""Goes on the server's PYTHONPATH; see `step_times` and `call_times`."""

from sglang_qsa.demo.cpu_engine import imports

imports.install(
    {
        "sglang.srt.managers.scheduler": "step_times",
        "sglang.srt.managers.cache_controller": "call_times",
    }
)
