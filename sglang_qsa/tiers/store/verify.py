"""Read every record of a namespace and say which are not what they should be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sglang_qsa.tiers.store.commits import Commits
from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.record import Damaged, Kind, Outcome
from sglang_qsa.tiers.store.references import keys_of, set_aside
from sglang_qsa.tiers.store.stats import Tally

_THREADS = 4
_KINDS = (Kind.PAGE, Kind.CHECKPOINT, Kind.COMMIT)

Progress = Callable[[list[tuple[Kind, str]]], Iterable[tuple[Kind, str]]]
"""Passes on the records it is given while it shows how many there are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification found."""

    sound: int
    damaged: tuple[tuple[Kind, str, Outcome], ...]
    incomplete: tuple[str, ...]
    """Checkpoints with a sound commit entry that lack their record or a page."""

    @property
    def clean(self) -> bool:
        return not self.damaged and not self.incomplete


class Verifier:
    """Verifies one namespace; others may write to it meanwhile."""

    def __init__(self, files: RecordFiles) -> None:
        self._files = files
        self._tally = Tally()
        self._buffers = threading.local()

    def verify(self, progress: Progress) -> Verdict:
        """Recompute all checksums.

        Raises:
            OSError: a directory cannot be listed.
        """
        names = [(kind, key) for kind in _KINDS for key in keys_of(self._files, kind)]
        with ThreadPoolExecutor(_THREADS) as pool:
            outcomes = list(pool.map(self._outcome, progress(names)))
        damaged = tuple(
            (kind, key, outcome)
            for (kind, key), outcome in zip(names, outcomes, strict=True)
            if outcome not in (Outcome.HIT, Outcome.ABSENT)  # absent: evicted meanwhile
        )
        bad = {(kind, key) for kind, key, _ in damaged}
        commits = Commits(self._files, self._tally)
        incomplete = []
        for kind, key in names:
            if kind is Kind.COMMIT and (kind, key) not in bad:
                commit = commits.read(key)
                if commit is not None and (
                    not commits.whole(key, commit.pages)
                    or any(name in bad for name in commit.names())
                ):
                    incomplete.append(key)
        return Verdict(outcomes.count(Outcome.HIT), damaged, tuple(incomplete))

    def repair(self, verdict: Verdict) -> None:
        """Set aside what is damaged, and withdraw what lacks a part."""
        for kind, key, outcome in verdict.damaged:
            set_aside(self._files, self._tally, kind, key, outcome)
        for key in verdict.incomplete:
            with suppress(OSError):
                self._files.system.unlink(self._files.namespace.file(Kind.COMMIT, key))

    def _outcome(self, name: tuple[Kind, str]) -> Outcome:
        kind, key = name
        try:
            if kind is Kind.COMMIT:
                self._files.read_payload(kind, key)
            else:
                self._files.read_into(kind, key, self._buffer(kind))
        except FileNotFoundError:
            return Outcome.ABSENT
        except OSError:
            return Outcome.UNREADABLE
        except Damaged as damage:
            return damage.outcome
        return Outcome.HIT

    def _buffer(self, kind: Kind) -> bytearray:
        """Memory of this thread for one payload of `kind`."""
        buffer = getattr(self._buffers, kind.name, None)
        if buffer is None:
            buffer = bytearray(self._files.namespace.payload_bytes(kind) or 0)
            setattr(self._buffers, kind.name, buffer)
        return buffer
