"""Lets a test stop the daemon at an exact step of the server.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

from sglang_qsa.demo.cpu_engine import imports

imports.install({"sglang_qsa.tiers.lmcache.connector": "signal_daemon"})
