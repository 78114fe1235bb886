"""A server's `/metrics`, read once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from sglang_qsa.errors import ConfigError, QsaError, refusal

OURS = "sglang_qsa_"
PREFIXES = ("sglang:", OURS)
_TIMEOUT_S = 5.0


class NoMetrics(QsaError):
    """A server is not reachable, or shows no metrics of SGLang."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series; its name is that on the page, so a counter's ends in `_total`."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """Series of SGLang and of the plugin, and when they were read."""

    samples: tuple[Sample, ...]
    seconds: float
    """Of a monotonic clock."""

    def find(self, name: str, **labels: str) -> list[Sample]:
        """The series `name` whose labels include `labels`."""
        return [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    @property
    def ours(self) -> list[Sample]:
        """The series of the plugin."""
        return [s for s in self.samples if s.name.startswith(OURS)]

    def stores(self) -> list[str]:
        """The external tiers that have counted something."""
        return sorted({s.labels["store"] for s in self.ours if "store" in s.labels})


def fetch(url: str) -> Page:
    """Read the metrics of the server at `url`.

    Raises:
        ConfigError: `url` is none.
        NoMetrics: no answer, or one without SGLang's metrics.
    """
    address = f"{url.rstrip('/').removesuffix('/metrics')}/metrics"
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            refusal(
                found=repr(url),
                wanted="http://HOST:PORT",
                origin="--url",
                way_out="give the address of the SGLang server",
            )
        )
    return parse(_get(address), address)


def parse(text: str, origin: str) -> Page:
    """The series of a page.

    Raises:
        NoMetrics: it has none of SGLang's.
    """
    try:
        samples = tuple(_samples(text))
    except ValueError:
        samples = ()
    if not samples:
        raise NoMetrics(
            refusal(
                found="no metrics of SGLang",
                wanted="series named sglang:… or sglang_qsa_…",
                origin=origin,
                way_out="give the address of the SGLang server itself",
            )
        )
    return Page(samples, time.monotonic())


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        if family.name.startswith(PREFIXES):
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, sample.value)


def _get(address: str) -> str:
    try:
        with build_opener(ProxyHandler({})).open(address, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read()
    except HTTPError as error:
        found, way_out = f"HTTP {error.code}", "start the server with --enable-metrics"
    except (OSError, HTTPException, ValueError) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        found = f"no answer ({reason or type(error).__name__})"
        way_out = "check the address, and that the server runs"
    else:
        return body.decode(errors="replace")
    raise NoMetrics(
        refusal(found=found, wanted="a metrics page", origin=address, way_out=way_out)
    )
