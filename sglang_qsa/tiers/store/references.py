"""Which records must stay: those that a commit entry names, or an intent.

A commit entry is a record of its own, under the key of its checkpoint, whose payload
is the keys of the pages, one a line. It exists or it does not: that is what makes a
checkpoint and all its pages visible together. An intent has the same payload; it says
that a living process is about to commit.

No lock orders writers and collectors. A writer announces before it looks (an intent,
then the question which pages are there); a collector hides before it asks (out of the
way, then the question who needs it). Whichever comes second sees the other.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sglang_qsa.tiers.store.files import TEMPORARY, RecordFiles
from sglang_qsa.tiers.store.namespace import FOLDERS
from sglang_qsa.tiers.store.record import KEY, Damaged, Kind, Outcome
from sglang_qsa.tiers.store.stats import Tally

_NANOSECONDS = 1_000_000_000

Name = tuple[Kind, str]
"""Kind and key of a page or a checkpoint."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One visible checkpoint; `pages` from the first token on."""

    key: str
    pages: tuple[str, ...]
    order: int
    """Place in the order of use; higher was used later."""
    length: int
    """Bytes of the entry itself."""
    inode: int

    def names(self) -> Iterator[Name]:
        yield Kind.CHECKPOINT, self.key
        for page in self.pages:
            yield Kind.PAGE, page


@dataclass(slots=True)
class References:
    """One reading of all commits and intents."""

    commits: dict[str, Commit] = field(default_factory=dict)
    announced: set[Name] = field(default_factory=set)

    def counts(self) -> Counter[Name]:
        """How many commits and announcements name each record."""
        counts = Counter(self.announced)
        for commit in self.commits.values():
            counts.update(commit.names())
        return counts


def as_payload(pages: Sequence[str]) -> bytearray:
    return bytearray("\n".join(pages).encode("ascii"))


def read_references(
    files: RecordFiles, tally: Tally, known: References | None = None
) -> References:
    """Read what is referenced now.

    Intents come first: one that is gone by then has become a commit, or nothing.

    Args:
        known: an earlier reading; commits that did not change are taken from it.
    Raises:
        OSError: a directory cannot be listed, or an entry not read.
    """
    references = References()
    for name in keys_of(files, Kind.INTENT):
        pages = _pages_of(files, tally, Kind.INTENT, name)
        if pages is not None:
            checkpoint, *others = pages
            references.announced.add((Kind.CHECKPOINT, checkpoint))
            references.announced.update((Kind.PAGE, page) for page in others)
    for key in keys_of(files, Kind.COMMIT):
        commit = read_commit(files, tally, key, known)
        if commit is not None:
            references.commits[key] = commit
    return references


def read_commit(
    files: RecordFiles, tally: Tally, key: str, known: References | None = None
) -> Commit | None:
    """A commit entry, or None where there is none or it was damaged and set aside.

    Raises:
        OSError: it cannot be read.
    """
    try:
        found = files.system.stat(files.namespace.file(Kind.COMMIT, key))
    except FileNotFoundError:
        return None
    order = order_of(found)
    before = known.commits.get(key) if known is not None else None
    if before is not None and before.inode == found.st_ino:
        pages: tuple[str, ...] | None = before.pages
    else:
        pages = _pages_of(files, tally, Kind.COMMIT, key)
    if pages is None:
        return None
    return Commit(key, pages, order, found.st_size, found.st_ino)


def order_of(found: os.stat_result) -> int:
    """The place in the order of use that `System.set_order` wrote."""
    return found.st_mtime_ns // _NANOSECONDS


def keys_of(files: RecordFiles, kind: Kind) -> Iterable[str]:
    """The keys of all records of one kind, in no order.

    Raises:
        OSError: the directory cannot be listed.
    """
    for name in files.system.names(files.namespace.folder(FOLDERS[kind])):
        if not name.startswith(TEMPORARY) and KEY.fullmatch(name):
            yield name


def _pages_of(
    files: RecordFiles, tally: Tally, kind: Kind, key: str
) -> tuple[str, ...] | None:
    try:
        payload = files.read_payload(kind, key)
    except FileNotFoundError:
        return None
    except Damaged as damage:
        tally.record(kind, damage.outcome)
        set_aside(files, tally, kind, key, damage.outcome)
        return None
    return tuple(payload.decode("ascii").split("\n"))


def set_aside(
    files: RecordFiles, tally: Tally, kind: Kind, key: str, cause: Outcome
) -> None:
    """Quarantine a record, and count it where that worked."""
    if files.quarantine(kind, key):
        tally.quarantined(kind, cause)
