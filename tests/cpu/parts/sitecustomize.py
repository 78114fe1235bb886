"""Lets a test leave out one part of a second state.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install({"sglang_qsa.hooks.second_forward": "leave_part"})
