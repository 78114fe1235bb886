"""Lets a test lose draft rows of a restored prefix.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install({"sglang_qsa.tiers.host.reference": "lose_drafts"})
