"""Entry point of the group `sglang.srt.plugins`.

Runs in every SGLang process, so it imports neither torch nor any tier. SGLang
swallows exceptions here but not `SystemExit`.
"""

from __future__ import annotations

from sglang_qsa.config import load_config
from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks import HOOKS
from sglang_qsa.hooks.base import register as register_hooks
from sglang_qsa.hooks.launch import refuse


def register() -> None:
    """Register the hooks; a malformed configuration ends the process here."""
    try:
        load_config()
    except ConfigError as error:
        raise refuse(error) from None
    register_hooks(HOOKS)
