"""Remove what nobody needs, and the least recently used of the rest.

A checkpoint goes as a whole, its commit entry first: what is visible has its pages at
every moment. Pages go when the last commit that names them went. Several processes
may collect at the same time, and others write meanwhile (see `references`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sglang_qsa.tiers.store.files import RecordFiles
from sglang_qsa.tiers.store.namespace import FOLDERS, QUARANTINE, TRASH
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.references import (
    Commit,
    Name,
    References,
    keys_of,
    read_references,
)
from sglang_qsa.tiers.store.stats import Tally


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection removed, and what it left."""

    checkpoints: int
    """Visible ones that were evicted."""
    records: int
    """Pages and checkpoints removed, those that nobody named included."""
    freed_bytes: int
    used_bytes: int
    """Bytes of the namespace after it."""


class Collector:
    """Collects one namespace.

    Args:
        files: the namespace; its session owns what is hidden during a collection.
        tally: counts the bytes.
    """

    def __init__(self, files: RecordFiles, tally: Tally) -> None:
        self._files = files
        self._tally = tally

    def collect(
        self, limit_bytes: int | None = None, down_to_bytes: int | None = None
    ) -> Collected:
        """Remove records that nobody names, then evict if the rest exceeds a limit.

        What is quarantined goes first, then checkpoints that lost a part, then in the
        order of use. What a living writer has announced stays.

        Args:
            limit_bytes: nothing is evicted below it; None for never.
            down_to_bytes: once it evicts, it does until this much is left; the limit
                where it is None.
        Raises:
            OSError: a directory or a commit cannot be read; nothing is lost.
        """
        records = self._records()
        aside = dict(self._quarantined())
        references = read_references(self._files, self._tally)
        counts = references.counts()
        doomed = {name for name in records if name not in counts}
        used = (
            sum(records.values())
            + sum(aside.values())
            + sum(commit.length for commit in references.commits.values())
            - sum(records[name] for name in doomed)
        )
        freed, victims = 0, []
        if limit_bytes is not None and used > limit_bytes:
            goal = limit_bytes if down_to_bytes is None else down_to_bytes
            freed += self._unlink_all(aside)
            used -= freed
            for commit in self._eldest_first(references, records):
                if used <= goal:
                    break
                victims.append(commit)
                counts.subtract(commit.names())
                lost = {n for n in commit.names() if n in records and not counts[n]}
                doomed |= lost
                used -= commit.length + sum(records[name] for name in lost)
        freed += self._unlink_all(
            {
                self._files.namespace.file(Kind.COMMIT, commit.key): commit.length
                for commit in victims
            }
        )
        removed = self._remove(doomed, references)
        freed += sum(records[name] for name in removed)
        self._tally.moved("evicted", freed)
        return Collected(len(victims), len(removed), freed, used)

    def _records(self) -> dict[Name, int]:
        """Every page and checkpoint there is, with the length of its file."""
        namespace = self._files.namespace
        return {
            (kind, key): namespace.file_bytes(kind)
            for kind in (Kind.PAGE, Kind.CHECKPOINT)
            for key in keys_of(self._files, kind)
        }

    def _quarantined(self) -> Iterator[tuple[str, int]]:
        folder = self._files.namespace.folder(QUARANTINE)
        for name in self._files.system.names(folder):
            with suppress(FileNotFoundError):
                path = f"{folder}/{name}"
                yield path, self._files.system.stat(path).st_size

    def _eldest_first(
        self, references: References, records: dict[Name, int]
    ) -> list[Commit]:
        def rank(commit: Commit) -> tuple[bool, int]:
            return all(name in records for name in commit.names()), commit.order

        return sorted(references.commits.values(), key=rank)

    def _remove(self, doomed: set[Name], known: References) -> list[Name]:
        """Hide the doomed, ask again who is needed, and unlink the others."""
        hidden: dict[Name, str] = {}
        needed: Iterable[Name] = doomed
        try:
            for name in doomed:
                hidden.update(self._hide(name))
            if hidden:
                needed = read_references(self._files, self._tally, known).counts()
        finally:
            for name in hidden.keys() & set(needed):
                with suppress(OSError):
                    self._files.system.rename(hidden.pop(name), self._path(name))
        self._unlink_all(dict.fromkeys(hidden.values(), 0))
        return list(hidden)

    def _hide(self, name: Name) -> Iterator[tuple[Name, str]]:
        folder = FOLDERS[name[0]]
        trash = self._files.namespace.folder(TRASH)
        hidden = f"{trash}/{self._files.unique()}.{folder}.{name[1]}"
        with suppress(FileNotFoundError):
            self._files.system.rename(self._path(name), hidden)
            yield name, hidden

    def _path(self, name: Name) -> str:
        return self._files.namespace.file(*name)

    def _unlink_all(self, paths: dict[str, int]) -> int:
        """Remove files, tolerating that others did; the bytes that went."""
        freed = 0
        for path, length in paths.items():
            with suppress(FileNotFoundError):
                self._files.system.unlink(path)
                freed += length
        return freed
