"""The project's exceptions, and the exit code of a refusal.

Every message states what was found, what was wanted, where it came from and the
way out, in one line. At start any of them ends the launch with exit code `REFUSED`;
in a running server a tier answers a miss instead.
"""

from __future__ import annotations

REFUSED = 2
"""Exit code of every refused launch and of `sglang-qsa check`."""


class QsaError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(QsaError):
    """User input (option, file, flag, model config) cannot be honoured."""


class UpstreamMismatch(QsaError):
    """SGLang or LMCache is not the code this package was written against."""


class LayoutMismatch(QsaError):
    """Live pools or stored bytes differ from the declared layout."""


class StoreError(QsaError):
    """A tier cannot serve."""


class StoreUnavailable(StoreError):
    """The tier did not answer in time or is not reachable."""


def refusal(*, found: str, wanted: str, origin: str, way_out: str) -> str:
    """One line that says everything a person needs to fix a refused launch."""
    return f"{origin}: found {found}; wanted {wanted}; {way_out}"
