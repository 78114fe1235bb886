"""What the daemon tells about itself before a model is loaded.

Runs in the launching process: it registers nothing and touches no device.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_qsa.config import QsaConfig
from sglang_qsa.errors import ConfigError, refusal
from sglang_qsa.geometry import PAGE_TOKENS

Fact = tuple[str, str, str, str]
"""what, found, wanted, way out (empty when as wanted); see `preflight.Finding`."""


def daemon_facts(config_file: str | None, options: QsaConfig) -> Iterator[Fact]:
    """Reach the daemon and check its chunk size, and its version where it tells.

    Raises:
        ConfigError: LMCache's own config file cannot be used.
    """
    url, origin = _endpoint(config_file)
    chunk = _chunk_size(url, timeout_s=options.lookup_timeout_s)
    wanted = f"an LMCache daemon (address from {origin})"
    if chunk is None:
        found = f"no answer within {options.lookup_timeout_s:g} s"
        yield url, found, wanted, "start `lmcache server` or correct the address"
        return
    yield url, "answers", wanted, ""
    fits = chunk > 0 and chunk % PAGE_TOKENS == 0
    yield (
        f"chunk size of {url}",
        f"{chunk}",
        f"a multiple of {PAGE_TOKENS}, the checkpoint grid",
        "" if fits else f"start `lmcache server` with --chunk-size {PAGE_TOKENS}",
    )
    if options.lmcache_http_url:
        yield _version_fact(options)


def _endpoint(config_file: str | None) -> tuple[str, str]:
    """Address of the daemon and where it was found."""
    from lmcache.v1.config import load_engine_config_with_overrides

    origin = config_file or "LMCache's environment variables"
    if config_file:
        _check_yaml(Path(config_file))
    config: Any = load_engine_config_with_overrides(config_file_path=config_file)
    if not config.mp_host or not config.mp_port:
        found = f"mp_host {config.mp_host!r}, mp_port {config.mp_port!r}"
        raise _bad_config(origin, found, "mp_host and mp_port of the daemon")
    host = str(config.mp_host)
    if "://" not in host:
        host = f"tcp://{host}"
    return f"{host.rstrip(':')}:{int(config.mp_port)}", origin


def _check_yaml(file: Path) -> None:
    """Upstream's loader answers a broken file with whatever it trips over."""
    import yaml

    wanted = "a YAML mapping with mp_host and mp_port"
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad_config(str(file), error.strerror or str(error), wanted) from None
    except yaml.YAMLError as error:
        found = "malformed YAML: " + " ".join(str(error).split())
        raise _bad_config(str(file), found, wanted) from None
    if not isinstance(document, dict):
        raise _bad_config(str(file), type(document).__name__, wanted)


def _bad_config(origin: str, found: str, wanted: str) -> ConfigError:
    return ConfigError(
        refusal(
            found=found,
            wanted=wanted,
            origin=origin,
            way_out="correct --lmcache-config-file",
        )
    )


def _chunk_size(url: str, *, timeout_s: float) -> int | None:
    """The daemon's chunk size, or None when it does not answer in time."""
    from lmcache.v1.mp_observability.errors import LMCacheTimeoutError
    from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

    with contextlib.closing(RequestClientFactory.create(url)) as client:
        try:
            return int(client.get_chunk_size().result(timeout=timeout_s))
        except LMCacheTimeoutError:
            return None


def _version_fact(options: QsaConfig) -> Fact:
    wanted = importlib.metadata.version("lmcache")
    url = f"{options.lmcache_http_url.rstrip('/')}/lmc_version"
    try:
        with urllib.request.urlopen(url, timeout=options.lookup_timeout_s) as reply:
            found = str(json.load(reply))
    except (urllib.error.URLError, OSError, ValueError) as error:
        return url, f"no version ({error})", wanted, "correct lmcache_http_url"
    good = found == wanted
    return url, found, wanted, "" if good else f"start `lmcache server` {wanted}"
