"""Zero one plane in the device pools right after a load from the daemon.

A test writes the plane's name into the file `$QSA_TEST_LOSS`; the next load consumes
it. The server must hold nothing but the loaded prefix.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def apply(module: ModuleType) -> None:
    """Wrap the connector's load; called once, when it is imported."""
    armed = Path(os.environ["QSA_TEST_LOSS"])
    load = module.QsaConnector.prepare_load_on_stream

    @functools.wraps(load)
    def load_and_lose(connector: Any, *args: Any, **kwargs: Any) -> bool:
        loaded = bool(load(connector, *args, **kwargs))
        if loaded and armed.exists():
            arena = connector._sglang_kv_adapter.arena
            for tensor in arena.planes[armed.read_text()].tensors:
                tensor.view(torch.uint8).zero_()
            armed.unlink()
        return loaded

    module.QsaConnector.prepare_load_on_stream = load_and_lose
