"""A real server with a small device and more host memory."""

from __future__ import annotations

from pathlib import Path

from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.preflight import BACKEND_NAME

DEVICE_TOKENS = 1024
_FLAGS = (
    *("--radix-cache-backend", BACKEND_NAME, "--enable-metrics"),
    *("--skip-tokenizer-init", "--max-total-tokens", str(DEVICE_TOKENS)),
    *("--enable-hierarchical-cache", "--hicache-ratio", "8"),
    *("--hicache-mem-layout", "page_first_direct", "--hicache-io-backend", "direct"),
)
_SHORT_PROMPTS = {"SGLANG_QSA_HOST_TOKENS_PER_CHECKPOINT": "256"}
"""By default the 8,192 tokens of host memory get two checkpoints: too few for short
prompts to be found again, whatever the order in which they come."""


def with_host_memory(logs: Path) -> SGLangServer:
    """Not started yet; its log goes to the folder `logs`."""
    return SGLangServer(
        cached_checkpoint(), logs, flags=_FLAGS, environment=_SHORT_PROMPTS
    )
