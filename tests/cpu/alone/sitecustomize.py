"""Starts a server on a machine without LMCache.

Goes on the server's PYTHONPATH; the CPU engine's own `sitecustomize` runs it.
"""

import sys

sys.modules["lmcache"] = None  # type: ignore[assignment]
