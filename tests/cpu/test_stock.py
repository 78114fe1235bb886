"""Why the plugin exists: stock SGLang with this model and LMCache."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_qsa.demo.daemon import LMCacheDaemon
from sglang_qsa.demo.processes import StartFailed
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.story import lmcache_flags


@pytest.mark.server
def test_stock_does_not_start(tiny_model: Path, tmp_path: Path) -> None:
    with LMCacheDaemon(tmp_path) as daemon:
        daemon.wait_ready()
        server = SGLangServer(
            tiny_model, tmp_path, flags=lmcache_flags(daemon), with_plugin=False
        )
        with server, pytest.raises(StartFailed) as failure:
            server.wait_ready()
    assert "LMCache MP does not support ple_short_conv state" in failure.value.log
