"""Find what can be served: a commit entry, its checkpoint and all its pages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.references import (
    Commit,
    keys_of,
    order_of,
    read_commit,
)
from sglang_qsa.tiers.store.stats import Tally


class Lookup:
    """Reads the directory at every question; keeps the order of use.

    Threads may call everything at the same time.
    """

    def __init__(self, files: RecordFiles, tally: Tally) -> None:
        self._files = files
        self._tally = tally
        self._lock = threading.Lock()
        self._last_use = self._last_order()

    def commit(self, key: str) -> Commit | None:
        """The entry of a checkpoint; see `read_commit`."""
        commit = read_commit(self._files, self._tally, key)
        if commit is not None:
            with self._lock:
                self._last_use = max(self._last_use, commit.order)
        return commit

    def contains(self, key: str) -> bool:
        """Whether a checkpoint and all its pages are there, unverified."""
        try:
            commit = self.commit(key)
        except OSError:
            return False
        return commit is not None and self.whole(key, commit.pages)

    def whole(self, key: str, pages: Sequence[str]) -> bool:
        """Whether a checkpoint and its pages lie there in full length, unverified."""
        return self._files.present(Kind.CHECKPOINT, key) and self._leading_pages(
            pages
        ) == len(pages)

    def longest_prefix(
        self, page_keys: Sequence[str], checkpoint_keys: Sequence[str]
    ) -> int:
        """See `DirectoryStore.longest_prefix`."""
        result, intact = "absent", None
        for pages in range(len(page_keys), 0, -1):
            try:
                commit = self.commit(checkpoint_keys[pages - 1])
            except OSError:
                result = "unreadable"
                continue
            if commit is None:
                continue
            if intact is None:
                intact = self._leading_pages(page_keys)
            if (
                pages <= intact
                and commit.pages[-pages:] == tuple(page_keys[:pages])
                and self._files.present(Kind.CHECKPOINT, commit.key)
            ):
                self.touch(commit.key)
                self._tally.lookup("hit" if result == "absent" else "shortened")
                return pages
            result = "incomplete"
        self._tally.lookup(result)
        return 0

    def touch(self, key: str) -> None:
        """Note that a checkpoint was used."""
        path = self._files.namespace.file(Kind.COMMIT, key)
        with suppress(OSError):  # it may be evicted earlier than it should
            self._files.system.set_order(path, self.next_use())

    def next_use(self) -> int:
        """A place in the order of use after all that were seen."""
        with self._lock:
            self._last_use += 1
            return self._last_use

    def _leading_pages(self, keys: Sequence[str]) -> int:
        """Pages that are there before the first that is not."""
        for number, key in enumerate(keys):
            if not self._files.present(Kind.PAGE, key):
                return number
        return len(keys)

    def _last_order(self) -> int:
        last = 0
        with suppress(OSError):
            for key in keys_of(self._files, Kind.COMMIT):
                path = self._files.namespace.file(Kind.COMMIT, key)
                last = max(last, order_of(self._files.system.stat(path)))
        return last
