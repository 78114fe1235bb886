"""Lets a test start the server with one of the plugin's hooks out of order.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install(
    {
        "sglang.srt.plugins.hook_registry": "break_hook",
        "sglang_qsa.hooks.lmcache": "break_binding",
        "sglang_qsa.hooks.second_forward": "break_binding",
    }
)
