"""Commit entries as the directory has them, and the order of their use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.references import Commit, read_commit
from sglang_qsa.tiers.store.stats import Tally


class Commits:
    """Reads the directory at every question; keeps the order of use.

    Threads may call everything at the same time.
    """

    def __init__(self, files: RecordFiles, tally: Tally) -> None:
        self._files = files
        self._tally = tally
        self._lock = threading.Lock()
        self._last_use = 0

    def read(self, key: str) -> Commit | None:
        """The entry of a checkpoint; see `read_commit`."""
        commit = read_commit(self._files, self._tally, key)
        if commit is not None:
            self.saw(commit.order)
        return commit

    def whole(self, key: str, pages: Sequence[str]) -> bool:
        """Whether a checkpoint and its pages lie there in full length, unverified."""
        return self._files.present(Kind.CHECKPOINT, key) and all(
            self._files.present(Kind.PAGE, page) for page in pages
        )

    def touch(self, key: str) -> None:
        """Note that a checkpoint was used."""
        path = self._files.namespace.file(Kind.COMMIT, key)
        with suppress(OSError):  # it may be evicted earlier than it should
            self._files.system.set_order(path, self.next_use())

    def saw(self, order: int) -> None:
        """Note a place in the order of use, that another process may have given."""
        with self._lock:
            self._last_use = max(self._last_use, order)

    def next_use(self) -> int:
        """A place in the order of use after all that were seen."""
        with self._lock:
            self._last_use += 1
            return self._last_use
