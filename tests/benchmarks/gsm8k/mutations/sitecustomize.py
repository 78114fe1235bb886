"""Lets a test break one thing in what the record store gives back.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install({"sglang_qsa.tiers.store.directory": "break_tier"})
