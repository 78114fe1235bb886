"""Look-ups from memory: what they cost, and how soon they know of others."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_qsa.tiers.store import directory, lookup
from sglang_qsa.tiers.store.directory import DirectoryStore
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.record import Kind, Outcome
from sglang_qsa.tiers.store.system import System
from sglang_qsa.tiers.store.writer import Stored
from tests.tiers.store.faulty import Refusing, Stepped
from tests.tiers.store.small import (
    Prompt,
    collect,
    find,
    get,
    open_store,
    put,
    served,
)

AB, ABC, ABX, XY = (Prompt.of(*word) for word in ("ab", "abc", "abx", "xy"))


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refreshed but where a test says so."""
    monkeypatch.setattr(directory, "_REFRESH_S", 3600.0)


def look_up(store: DirectoryStore, prompt: Prompt) -> int:
    """As the scheduler's thread does."""
    return store.longest_prefix(prompt.pages)


class Counting(Stepped):
    """Counts the calls of the thread that made it."""

    def __init__(self) -> None:
        self.calls = Counter[str]()
        self._thread = threading.get_ident()

    def step(self, call: str) -> None:
        if threading.get_ident() == self._thread:
            self.calls[call] += 1


@pytest.mark.parametrize("found", ["all", "half", "nothing"])
def test_disk_is_asked_as_often_for_every_length(tmp_path: Path, found: str) -> None:
    """On the scheduler's thread, where a question for each page was 9 ms at 32k."""
    asked = []
    for pages in (4, 400):
        system = Counting()
        store = open_store(tmp_path / f"{pages}", system=system, sync=Sync.NONE)
        words = [f"{page}" for page in range(pages)]
        prompt = Prompt.of(*words)
        stored = {"all": pages, "half": pages // 2, "nothing": 0}[found]
        if stored:
            put(store, Prompt.of(*words[:stored]))
        system.calls.clear()
        assert look_up(store, prompt) == stored
        asked.append(system.calls.copy())
        store.close()
    assert asked[0] == asked[1] == ({"stat": 2} if found != "nothing" else {})


def test_written_by_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread of the store; until then it is a counted miss."""
    monkeypatch.setattr(directory, "_REFRESH_S", 0.01)
    mine, other = open_store(tmp_path), open_store(tmp_path)
    put(other, ABC)
    deadline = time.monotonic() + 10
    while not (pages := look_up(mine, ABC)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert pages == 3
    assert set(get(mine, ABC).values()) == {Outcome.HIT}
    mine.close()
    other.close()


def test_not_found_before_the_refresh(tmp_path: Path) -> None:
    mine, other = open_store(tmp_path), open_store(tmp_path)
    put(mine, AB)
    put(other, ABC)
    assert (look_up(mine, ABC), look_up(mine, XY)) == (2, 0)
    assert mine.tally.count("lookups", "absent") == 1
    mine.refresh()
    assert look_up(mine, ABC) == 3
    mine.close()
    other.close()


def test_evicted_by_another_is_a_counted_miss(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, ABC)
    collect(tmp_path, 0)
    assert look_up(store, ABC) == 0
    assert store.tally.count("lookups", "absent") == 1
    assert put(store, ABC) is Stored.WRITTEN
    assert look_up(store, ABC) == 3
    store.close()


def test_evicted_by_another_above_a_boundary(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, ABC)
    put(store, AB)
    collect(tmp_path, sum(f.stat().st_size for f in tmp_path.glob("*/*/*")) - 1)
    assert look_up(store, ABC) == 2
    assert set(get(store, AB).values()) == {Outcome.HIT}
    store.close()


def test_what_others_evicted_is_forgotten(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, ABC)
    collect(tmp_path, 0)
    store.refresh()
    assert not store._lookup._known
    store.close()


def test_changes_within_one_step_of_the_file_system_s_clock(tmp_path: Path) -> None:
    mine, other = open_store(tmp_path), open_store(tmp_path)
    put(other, AB)
    folder = mine.namespace.folder("commits")
    changed_ns = os.stat(folder).st_mtime_ns
    assert find(mine, AB) == 2
    put(other, XY)
    os.utime(folder, ns=(changed_ns, changed_ns))
    assert find(mine, XY) == 2
    mine.close()
    other.close()


def test_quiet_directory_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Counting()
    store = open_store(tmp_path, system=system)
    put(store, AB)
    monkeypatch.setattr(lookup, "_COARSEST_S", 0.0)
    store.refresh()
    system.calls.clear()
    store.refresh()
    assert system.calls == {"stat": 1}
    store.close()


class After(System):
    """Does something when the names in a folder were read: it is not among them."""

    def __init__(self, folder: str, action: Callable[[], object]) -> None:
        self._folder = folder
        self._action = action

    def names(self, path: str) -> list[str]:
        names = super().names(path)
        if os.path.basename(path) == self._folder:
            self._action()
        return names


def test_put_during_a_refresh_stays_known(tmp_path: Path) -> None:
    system = After("commits", lambda: put(store, AB) if store else None)
    store: DirectoryStore | None = None
    store = open_store(tmp_path, system=system)
    store.refresh()
    assert look_up(store, AB) == 2
    store.close()


def test_put_by_another_during_a_start_is_found(tmp_path: Path) -> None:
    """Its pages were not there yet when the names of the pages were read."""
    other = open_store(tmp_path)
    prompts = [Prompt.of(f"{number}", "b") for number in range(9)]
    left = iter(prompts)
    store = open_store(tmp_path, system=After("pages", lambda: put(other, next(left))))
    stored = prompts[: len(prompts) - len(list(left))]
    assert stored
    assert [look_up(store, prompt) for prompt in stored] == [2] * len(stored)
    store.close()
    other.close()


def lose_a_page(store: DirectoryStore) -> None:
    os.unlink(store.namespace.file(*AB.names[1]))
    assert served(store, AB) == 0
    assert store.tally.count("records", "page", "absent") == 1


def test_lost_page_is_not_promised_again(tmp_path: Path) -> None:
    """Nor any boundary beyond it; one before it is."""
    store = open_store(tmp_path)
    for prompt in (Prompt.of("a"), AB, ABC):
        put(store, prompt)
    lose_a_page(store)
    assert look_up(store, ABC) == 1
    assert store.tally.count("lookups", "shortened") == 1
    store.close()


@pytest.mark.parametrize("by", ["this one", "another"])
def test_lost_page_comes_back_with_any_prompt(tmp_path: Path, by: str) -> None:
    store, other = open_store(tmp_path), open_store(tmp_path)
    put(store, AB)
    lose_a_page(store)
    assert put(store if by == "this one" else other, ABX) is Stored.WRITTEN
    store.refresh()
    assert served(store, AB) == 2
    store.close()
    other.close()


def test_lost_page_that_another_healed_comes_back_with_its_prompt(
    tmp_path: Path,
) -> None:
    """The linker asks before it copies, and then puts nothing."""
    store, other = open_store(tmp_path), open_store(tmp_path)
    put(store, AB)
    lose_a_page(store)
    put(other, AB)
    assert store.contains(AB.checkpoint)
    assert served(store, AB) == 2
    store.close()
    other.close()


def test_directory_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Misses say so, and the next refresh tries again though nothing has changed."""
    monkeypatch.setattr(lookup, "_COARSEST_S", 0.0)
    system = Refusing(errno.EIO, {"names", "open"})
    mine, other = open_store(tmp_path, system=system), open_store(tmp_path)
    put(other, AB)
    for call in range(2):  # the names, then the entry
        with system.armed(call, 1):
            assert find(mine, AB) == 0
    assert mine.tally.count("lookups", "unreadable") == 2
    assert find(mine, AB) == 2
    mine.close()
    other.close()


def order_of_use(store: DirectoryStore, prompt: Prompt) -> float:
    return os.stat(store.namespace.file(Kind.COMMIT, prompt.checkpoint)).st_mtime


def test_use_is_written_by_others_than_the_scheduler(tmp_path: Path) -> None:
    """What was used last is the last, however often the other was before."""
    store = open_store(tmp_path)
    put(store, AB)
    put(store, XY)
    before = order_of_use(store, AB), order_of_use(store, XY)
    for prompt in (XY, AB, XY):
        assert look_up(store, prompt) == 2
    assert (order_of_use(store, AB), order_of_use(store, XY)) == before
    store.refresh()
    assert before[1] < order_of_use(store, AB) < order_of_use(store, XY)
    store.close()


def test_use_comes_after_that_of_others(tmp_path: Path) -> None:
    """Which count on their own: what is used here is not put behind what they used."""
    mine, other = open_store(tmp_path), open_store(tmp_path)
    put(other, AB)
    mine.refresh()
    for _ in range(5):
        assert look_up(other, AB) == 2
        other.refresh()
    theirs = order_of_use(other, AB)
    assert look_up(mine, AB) == 2
    mine.refresh()
    assert order_of_use(mine, AB) > theirs
    mine.close()
    other.close()
