"""Eviction and collection: a visible checkpoint has its pages, whoever else writes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_qsa.tiers.store.directory import DirectoryStore
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.record import Kind, Outcome, file_bytes
from sglang_qsa.tiers.store.writer import Page, Stored
from tests.tiers.store.faulty import Between
from tests.tiers.store.small import (
    LAYOUT,
    Prompt,
    collect,
    content,
    find,
    get,
    open_store,
    put,
    served,
)

PAGE = file_bytes(LAYOUT.page_bytes)
STATE = file_bytes(LAYOUT.checkpoint_bytes)
ENTRY = file_bytes(1)
OF_TWO = 2 * PAGE + STATE + ENTRY
"""Bytes of a prompt of two pages."""

AB, ABC, XY, UV = (Prompt.of(*word) for word in ("ab", "abc", "xy", "uv"))


def start_and_end(root: Path) -> None:
    open_store(root).close()


def used(root: Path) -> int:
    """Bytes of all files of all namespaces, by the file system."""
    return sum(
        path.stat().st_size
        for path in root.glob("*/*/*")
        if path.parent.name not in ("sessions", "intents")
    )


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget_bytes=2 * OF_TWO + PAGE)
    put(store, AB)
    put(store, XY)
    assert served(store, AB) == 2
    assert put(store, UV) is Stored.WRITTEN
    assert (find(store, AB), find(store, XY), find(store, UV)) == (2, 0, 2)
    assert used(tmp_path) == 2 * OF_TWO
    assert store.tally.count("bytes", "evicted") == OF_TWO
    store.close()


def test_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, XY)
    served(store, AB)
    store.close()
    again = open_store(tmp_path, budget_bytes=2 * OF_TWO + PAGE)
    put(again, UV)
    assert (find(again, AB), find(again, XY)) == (2, 0)
    again.close()


def test_shared_pages_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, ABC)
    collected = collect(tmp_path, used(tmp_path) - 1)
    assert (collected.checkpoints, collected.freed_bytes) == (1, STATE + ENTRY)
    assert find(store, AB) == 0
    assert served(store, ABC) == 3
    store.close()


def test_quarantine_goes_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, XY)
    damaged = store.namespace.file(*XY.names[0])
    with open(damaged, "r+b") as file:
        file.write(b"?")
    assert get(store, XY)[XY.names[0]] is Outcome.HEADER
    assert put(store, XY) is Stored.WRITTEN
    collect(tmp_path, 2 * OF_TWO)
    assert os.listdir(store.namespace.folder("quarantine")) == []
    assert (served(store, AB), served(store, XY)) == (2, 2)
    store.close()


def test_checkpoint_without_a_page_goes_before_older_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    put(store, XY)
    os.unlink(store.namespace.file(*XY.names[0]))
    collect(tmp_path, used(tmp_path) - 1)
    assert (find(store, AB), store.contains(XY.checkpoint)) == (2, False)
    store.close()


def test_what_cannot_fit_is_not_written(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget_bytes=OF_TWO)
    assert put(store, ABC) is Stored.NO_ROOM
    assert used(tmp_path) == 0
    assert put(store, AB) is Stored.WRITTEN
    assert put(store, ABC) is Stored.NO_ROOM
    assert served(store, AB) == 2
    store.close()


def test_unnamed_records_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, AB)
    os.unlink(store.namespace.file(Kind.COMMIT, AB.checkpoint))
    assert collect(tmp_path).records == 3
    assert used(tmp_path) == 0
    store.close()


def test_many_puts_keep_the_budget(tmp_path: Path) -> None:
    budget = 5 * OF_TWO
    store = open_store(tmp_path, budget_bytes=budget)
    for number in range(40):
        assert put(store, Prompt.of(f"{number}", "b")) is Stored.WRITTEN
        assert used(tmp_path) <= budget
    assert used(tmp_path) >= budget - 2 * OF_TWO
    store.close()


words = st.text("ab", min_size=1, max_size=4)
steps = st.lists(st.tuples(st.sampled_from(["put", "get", "collect"]), words))


@settings(max_examples=25, deadline=None)
@given(steps=steps, budget=st.integers(3, 12).map(lambda number: number * OF_TWO // 2))
def test_visible_checkpoints_are_whole(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]], budget: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = open_store(root, budget_bytes=budget)
    for step, word in steps:
        prompt = Prompt.of(*word)
        if step == "put":
            assert put(store, prompt) in (
                Stored.WRITTEN,
                Stored.PRESENT,
                Stored.NO_ROOM,
            )
        elif step == "get":
            assert served(store, prompt) == find(store, prompt)
        else:
            collect(root, budget // 2)
        assert all(map(store.contains, visible(store)))
        assert used(root) <= budget
    store.close()


def visible(store: DirectoryStore) -> list[str]:
    return os.listdir(store.namespace.folder("commits"))


@pytest.mark.parametrize("shared", [False, True])
def test_collection_at_any_call_of_a_put(tmp_path: Path, shared: bool) -> None:
    """The writer announced its records before it looked which are there."""
    for at in range(500):
        root = tmp_path / f"{at}"
        store = open_store(root, sync=Sync.NONE)
        if shared:
            put(store, AB)
            os.unlink(store.namespace.file(Kind.COMMIT, AB.checkpoint))
        system = Between(at, partial(collect, root))
        writer = open_store(root, system=system, sync=Sync.NONE)
        assert put(writer, ABC) is Stored.WRITTEN
        assert served(store, ABC) == 3
        writer.close()
        store.close()
        if not system.happened:
            break
    assert at > 20


def test_put_at_any_call_of_a_collection(tmp_path: Path) -> None:
    """The collector hid the records before it asked who needs them."""
    for at in range(500):
        root = tmp_path / f"{at}"
        store = open_store(root, sync=Sync.NONE)
        put(store, AB)
        os.unlink(store.namespace.file(Kind.COMMIT, AB.checkpoint))
        answers: list[Stored] = []

        def put_meanwhile(
            store: DirectoryStore = store, answers: list[Stored] = answers
        ) -> None:
            answers.append(put(store, ABC))

        system = Between(at, put_meanwhile)
        collect(root, system=system)
        assert answers in ([], [Stored.WRITTEN])
        assert served(store, ABC) == 3 * len(answers)
        store.close()
        if not system.happened:
            break
    assert at > 15


def test_page_that_goes_during_a_put_is_written_again(tmp_path: Path) -> None:
    """As a collector does that hid it before the writer announced it."""
    pages = []
    for at in range(500):
        root = tmp_path / f"{at}"
        store = open_store(root, sync=Sync.NONE)
        put(store, AB)
        system = Between(
            at, partial(Path(store.namespace.file(*AB.names[0])).unlink, True)
        )
        writer = open_store(root, system=system, sync=Sync.NONE)
        assert put(writer, ABC) is Stored.WRITTEN
        pages.append(served(store, ABC))
        writer.close()
        store.close()
        if not system.happened:
            break
    after_the_last_look = pages.count(0)
    assert len(pages) > 20
    assert after_the_last_look <= 6  # to the end of the put and of the session


def test_announced_pages_are_not_evicted(tmp_path: Path) -> None:
    """The writer does not have the bytes of the pages that it found."""
    answers = []
    for at in range(500):
        root = tmp_path / f"{at}"
        store = open_store(root, sync=Sync.NONE)
        put(store, AB)
        system = Between(at, partial(collect, root, 0))
        writer = open_store(root, system=system, sync=Sync.NONE)
        pages = [Page(key, None) for key in AB.pages]
        pages.append(Page(ABC.pages[2], content(LAYOUT, *ABC.names[2])))
        state = content(LAYOUT, *ABC.names[-1])
        answers.append(writer.put(ABC.checkpoint, state, pages))
        writer.close()
        store.close()
        if not system.happened:
            break
    announced = answers.index(Stored.WRITTEN)
    assert set(answers[:announced]) == {Stored.INCOMPLETE}
    assert set(answers[announced:]) == {Stored.WRITTEN}
    assert len(answers) - announced > 20


def test_start_of_another_server_at_any_call_of_a_put(tmp_path: Path) -> None:
    """It cleans up after the dead, and this one lives."""
    for at in range(500):
        root = tmp_path / f"{at}"
        open_store(root).close()
        system = Between(at, partial(start_and_end, root))
        writer = open_store(root, system=system, sync=Sync.NONE)
        assert put(writer, AB) is Stored.WRITTEN
        assert served(writer, AB) == 2
        writer.close()
        if not system.happened:
            break
    assert at > 20
