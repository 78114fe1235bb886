"""Find what can be served, from memory: the scheduler's thread asks.

A commit entry is there while its checkpoint and all its pages are, so the names of the
entries are all that a look-up needs. A thread of the store reads them when their
directory has changed; until then what another process has stored is a miss. What it has
evicted is noticed: the disk is asked for the entry that is found and for its state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sglang_qsa.tiers.store.commits import Commits
from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.namespace import FOLDERS
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.references import keys_of, order_of
from sglang_qsa.tiers.store.stats import Tally

_COARSEST_S = 2.0
"""The steps in which a file system counts time (FAT): two changes within one may leave
a directory the same time of change."""


class Lookup:
    """The keys of the commit entries of a namespace, as of the last `refresh`.

    Threads may call everything at the same time; each change of a set is one
    operation of the interpreter.
    """

    def __init__(self, files: RecordFiles, commits: Commits, tally: Tally) -> None:
        self._files = files
        self._commits = commits
        self._tally = tally
        self._known: set[str] = set()
        self._lost: set[str] = set()  # pages that entries name and nobody has
        self._used: deque[str] = deque()
        self._refreshing = threading.Lock()
        self._changed_ns, self._changed_at = -1, 0.0
        self._read_at: float | None = None
        self._unreadable = False

    def longest_prefix(self, keys: Sequence[str]) -> int:
        """See `DirectoryStore.longest_prefix`."""
        system, namespace = self._files.system, self._files.namespace
        known = [pages for pages, key in enumerate(keys, 1) if key in self._known]
        intact = self._pages_before_a_loss(keys) if known else 0
        failed = None
        for pages in reversed(known):
            key = keys[pages - 1]
            if pages > intact:
                failed = "incomplete"
                continue
            try:
                found = system.stat(namespace.file(Kind.COMMIT, key))
            except FileNotFoundError:
                self._known.discard(key)
            except OSError:
                failed = "unreadable"
            else:
                if self._files.present(Kind.CHECKPOINT, key):
                    self._commits.saw(order_of(found))
                    self._used.append(key)
                    self._tally.lookup("shortened" if failed else "hit")
                    return pages
                failed = "incomplete"
        self._tally.lookup(failed or ("unreadable" if self._unreadable else "absent"))
        return 0

    def add(self, key: str, pages: Iterable[str]) -> None:
        """Note an entry whose checkpoint and pages were there a moment ago."""
        self._known.add(key)
        self._lost.difference_update(pages)

    def lose(self, page: str) -> None:
        """Note that a page could not be read: nothing is found on it until `add`."""
        self._lost.add(page)

    def write_uses(self) -> None:
        """Let what was found since the last call be the last in the order of use."""
        used: dict[str, None] = {}
        with suppress(IndexError):
            while True:
                key = self._used.popleft()
                used.pop(key, None)
                used[key] = None
        for key in used:
            self._commits.touch(key)

    def refresh(self) -> None:
        """Learn what other processes have stored and evicted, if anything."""
        with self._refreshing:
            try:
                self._unreadable = not self._read_changes()
            except OSError:
                self._unreadable = True

    def _read_changes(self) -> bool:
        """False where an entry cannot be read; the next call tries again.

        Raises:
            OSError: the directory cannot be read.
        """
        now, first = time.monotonic(), self._read_at is None
        if not self._may_have_changed(now):
            return True
        before = self._known.copy()  # without what is put while names are read
        there = set(keys_of(self._files, Kind.PAGE)) if first else set()
        names = set(keys_of(self._files, Kind.COMMIT))
        self._known.difference_update(before - names)
        all_read = True
        for key in names - self._known:
            try:
                commit = self._commits.read(key)
            except OSError:
                all_read = False
                continue
            if commit is not None:
                self.add(key, commit.pages)
                if first:
                    self._lose_missing(set(commit.pages) - there)
        if all_read:
            self._read_at = now
        return all_read

    def _lose_missing(self, pages: Iterable[str]) -> None:
        """A power cut, or a quarantine since emptied, may have left an entry alone."""
        for page in pages:
            if not self._files.present(Kind.PAGE, page):
                self.lose(page)

    def _may_have_changed(self, now: float) -> bool:
        folder = self._files.namespace.folder(FOLDERS[Kind.COMMIT])
        changed_ns = self._files.system.stat(folder).st_mtime_ns
        if changed_ns != self._changed_ns:
            self._changed_ns, self._changed_at = changed_ns, now
        read_at = self._read_at
        return read_at is None or read_at - self._changed_at < _COARSEST_S

    def _pages_before_a_loss(self, keys: Sequence[str]) -> int:
        if not self._lost:
            return len(keys)
        lost = (number for number, key in enumerate(keys) if key in self._lost)
        return next(lost, len(keys))
