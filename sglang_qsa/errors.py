"""The project's exceptions.

Every message states what was found, what was wanted, where it came from and the
way out, in one line. The first three classes end a launch with exit code 2;
`StoreError` never does: a tier answers a miss instead.
"""

from __future__ import annotations


class QsaError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(QsaError):
    """User input (option, file, flag, model config) cannot be honoured."""


class UpstreamMismatch(QsaError):
    """SGLang or LMCache is not the code this package was written against."""


class LayoutMismatch(QsaError):
    """Live pools or stored bytes differ from the declared layout."""


class StoreError(QsaError):
    """A tier could not serve; callers answer a miss and count the cause."""


class StoreUnavailable(StoreError):
    """The tier did not answer in time or is not reachable."""


class CorruptObject(StoreError):
    """A stored object failed verification."""


def refusal(*, found: str, wanted: str, origin: str, way_out: str) -> str:
    """One line that says everything a person needs to fix a refused launch."""
    return f"{origin}: found {found}; wanted {wanted}; {way_out}"
