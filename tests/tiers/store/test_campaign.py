"""The fault campaign: whatever happens to the disk, right bytes or a counted miss.

Each case is one seed. `QSA_TEST_STORE_CASES=2400` runs the long form; the default is
what fits in a minute on two cores. A case that fails is run again by its id.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sglang_qsa.errors import ConfigError, StoreUnavailable
from sglang_qsa.tiers.store.directory import DirectoryStore
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.namespace import FOLDERS
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.writer import Stored
from tests.tiers.store.faulty import Dying, Killed, PowerCut, Refusing, raise_killed
from tests.tiers.store.small import (
    LAYOUT,
    OTHERS,
    Prompt,
    check_promise,
    find,
    misses,
    open_store,
    put,
    served,
)

FORK = get_context("fork")
"""No interpreter has to start, so that many processes can be killed."""
CASES = int(os.environ.get("QSA_TEST_STORE_CASES", "300"))

pytestmark = pytest.mark.timeout(60)


def cases(share: float, least: int = 1) -> pytest.MarkDecorator:
    """Seeds for a share of the campaign, in per cent."""
    return pytest.mark.parametrize(
        "seed", range(max(least, round(CASES * share / 100)))
    )


@pytest.fixture(autouse=True)
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other case a checkpoint is moved in several parts."""
    if request.node.callspec.params["seed"] % 2:
        monkeypatch.setattr("sglang_qsa.tiers.store.files._CHUNK", 4096)


def some_prompts(rng: random.Random) -> list[Prompt]:
    """Two to four prompts that share pages."""
    longest = "".join(rng.choice("ab") for _ in range(rng.randint(2, 5)))
    cuts = {len(longest), rng.randint(1, len(longest))}
    words = {longest[:cut] for cut in cuts} | {longest[: min(cuts)] + "x", "yz"}
    return [Prompt.of(*word) for word in sorted(words)]


def filled(root: Path, prompts: list[Prompt]) -> DirectoryStore:
    store = open_store(root)
    for prompt in prompts:
        assert put(store, prompt) in (Stored.WRITTEN, Stored.PRESENT)
    return store


def objects(store: DirectoryStore) -> list[Path]:
    folders = [FOLDERS[kind] for kind in (Kind.PAGE, Kind.CHECKPOINT, Kind.COMMIT)]
    return sorted(
        path
        for folder in folders
        for path in Path(store.namespace.folder(folder)).iterdir()
    )


# -- damage on the disk ----------------------------------------------------------


def truncate(paths: list[Path], rng: random.Random) -> None:
    path = rng.choice(paths)
    size = path.stat().st_size
    ends = [0, 1, 10, 4095, 4096, 4097, size - 4096, size - 1, rng.randrange(size)]
    os.truncate(path, rng.choice(ends))


def extend(paths: list[Path], rng: random.Random) -> None:
    with rng.choice(paths).open("ab") as file:
        file.write(rng.choice([b"\0", b"\0" * 4096, rng.randbytes(5000)]))


def flip_in(path: Path, first: int, end: int, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(first, end)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def flip_header(paths: list[Path], rng: random.Random) -> None:
    end = rng.choice([8, 16, 24, 88, 216, 232, 4096])
    flip_in(rng.choice(paths), 0, end, rng)


def flip_payload(paths: list[Path], rng: random.Random) -> None:
    path = rng.choice(paths)
    flip_in(path, 4096, path.stat().st_size, rng)


def delete(paths: list[Path], rng: random.Random) -> None:
    rng.choice(paths).unlink()


def swap(paths: list[Path], rng: random.Random) -> None:
    one, other = rng.sample(paths, 2)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def overwrite(paths: list[Path], rng: random.Random) -> None:
    """One object becomes the copy of another."""
    one, other = rng.sample(paths, 2)
    shutil.copyfile(one, other)


DAMAGES: list[Callable[[list[Path], random.Random], None]] = [
    *(truncate, extend, flip_header, flip_payload, delete, swap, overwrite)
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@cases(5)
def test_damage(
    tmp_path: Path, damage: Callable[[list[Path], random.Random], None], seed: int
) -> None:
    rng = random.Random(f"{damage.__name__}{seed}")
    prompts = some_prompts(rng)
    store = filled(tmp_path, prompts)
    if restart := rng.random() < 0.5:
        store.close()
    damage(objects(store), rng)
    if restart:
        store = open_store(tmp_path)
    check_promise(store, prompts)
    store.close()


# -- errors of the system --------------------------------------------------------

READS = {"open", "read", "names", "stat"}
WRITES = {"open", "write", "sync_file", "sync_directory", "rename", "unlink", "mkdir"}
ERRORS = {
    "ENOSPC": (errno.ENOSPC, {"open", "write", "sync_file", "rename", "mkdir"}),
    "EIO": (errno.EIO, READS | WRITES | {"set_order"}),
    "EACCES": (errno.EACCES, {"open", "names", "rename", "unlink", "set_order"}),
}


@pytest.mark.parametrize("name", ERRORS)
@cases(6)
def test_error(tmp_path: Path, name: str, seed: int) -> None:
    """A running server is refused some calls, one in a row or all from one on."""
    rng = random.Random(f"{name}{seed}")
    system = Refusing(*ERRORS[name])
    first, *others = some_prompts(rng)
    budget = rng.choice([None, 1 << 20])
    store = open_store(tmp_path, system=system, budget_bytes=budget)
    assert put(store, first) is Stored.WRITTEN
    with system.armed(rng.randrange(60), rng.choice([1, 2, 1 << 30])):
        for prompt in others:
            assert put(store, prompt) in set(Stored)
        before = misses(store)
        assert served(store, first) == len(first.pages) or misses(store) > before
    check_promise(store, [first, *others])
    store.close()
    check_nothing_left_over(tmp_path)


@pytest.mark.parametrize("name", ERRORS)
@cases(1)
def test_error_at_start(tmp_path: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{name}{seed}")
    prompts = some_prompts(rng)
    if rng.random() < 0.5:
        filled(tmp_path, prompts).close()
    system = Refusing(*ERRORS[name])
    refused = suppress(StoreUnavailable, ConfigError)
    with refused, system.armed(rng.randrange(40), rng.choice([1, 1 << 30])):
        open_store(tmp_path, system=system).close()
    store = open_store(tmp_path)
    check_promise(store, prompts)
    store.close()


# -- death -----------------------------------------------------------------------


def check_nothing_left_over(root: Path, layout_id: str = LAYOUT.layout_id) -> None:
    """A start cleans up what the dead left: no temporary file, intent or session."""
    store = open_store(root)
    assert store.namespace.name.startswith(layout_id)
    for folder in (*FOLDERS.values(), "trash"):
        names = os.listdir(store.namespace.folder(folder))
        assert not [name for name in names if name.startswith(".tmp-")]
    assert os.listdir(store.namespace.folder("intents")) == []
    assert os.listdir(store.namespace.folder("trash")) == []
    assert len(os.listdir(store.namespace.folder("sessions"))) == 1
    store.close()


def until_death(
    root: Path, prompts: list[Prompt], system: Dying, sync: Sync, budget: int | None
) -> list[Prompt]:
    """Put prompts until the system kills; those that were reported as stored."""
    reported = []
    store = None
    try:
        store = open_store(root, system=system, sync=sync, budget_bytes=budget)
        for prompt in prompts:
            if put(store, prompt) in (Stored.WRITTEN, Stored.PRESENT):
                reported.append(prompt)
        store.close()
    except Killed:
        if store is not None:
            with suppress(Killed):
                store.close()
    system.release()
    return reported


SMALL_BUDGET = 12 * 8192
"""Room for a few prompts, so that puts evict."""


@cache
def changes_in_a_life(sync: Sync, budget: int | None, root: Path) -> int:
    """Calls that change the disk, of a server with four prompts, from start to end."""
    counting = Dying(1 << 60, raise_killed)
    until_death(root, some_prompts(random.Random(0)), counting, sync, budget)
    return counting.changes


LIVES = list(itertools.product(Sync, [None, SMALL_BUDGET]))
_STRIDE = 37
"""Coprime to the calls of a life: the seeds take them all before one comes again."""


@cases(24)
def test_killed_at_a_call(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    number, life = divmod(seed, len(LIVES))
    sync, budget = LIVES[life]
    base = tmp_path_factory.getbasetemp()
    changes = changes_in_a_life(sync, budget, base / f"life{life}")
    assert changes % _STRIDE
    system = Dying(number * _STRIDE % changes, raise_killed)
    prompts = some_prompts(random.Random(0))
    reported = until_death(tmp_path, prompts, system, sync, budget)
    check_survivors(tmp_path, prompts, reported if budget is None else [])


def check_survivors(root: Path, prompts: list[Prompt], reported: list[Prompt]) -> None:
    check_nothing_left_over(root)
    store = open_store(root)
    for prompt in reported:
        assert served(store, prompt) == len(prompt.pages)
    check_promise(store, prompts)
    store.close()


@cases(8)
def test_killed_for_real(tmp_path: Path, seed: int) -> None:
    """A process of its own sends itself SIGKILL at a call."""
    rng = random.Random(seed)
    budget, sync = rng.choice([None, SMALL_BUDGET]), rng.choice(list(Sync))
    prompts = some_prompts(rng)
    heard, say = FORK.Pipe(duplex=False)
    server = FORK.Process(
        target=live_until_sigkill,
        args=(tmp_path / "s", prompts, rng.randrange(120), sync, budget, say),
    )
    server.start()
    say.close()
    reported = []
    with suppress(EOFError):
        while True:
            reported.append(prompts[heard.recv()])
    server.join(timeout=30)
    assert server.exitcode in (0, -signal.SIGKILL)
    check_survivors(tmp_path / "s", prompts, reported if budget is None else [])


def live_until_sigkill(
    root: Path,
    prompts: list[Prompt],
    at: int,
    sync: Sync,
    budget: int | None,
    say: Connection,
) -> None:
    system = Dying(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    store = open_store(root, system=system, sync=sync, budget_bytes=budget)
    for number, prompt in enumerate(prompts):
        if put(store, prompt) in (Stored.WRITTEN, Stored.PRESENT):
            say.send(number)
    store.close()


@cases(16)
def test_power_cut(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    sync = list(Sync)[seed % 3]
    budget = rng.choice([None, None, SMALL_BUDGET])
    base = tmp_path_factory.getbasetemp()
    changes = changes_in_a_life(sync, budget, base / f"uncut-{sync}{budget}")
    prompts = some_prompts(rng)
    system = PowerCut(rng.randrange(changes * 5 // 4), tmp_path / "shadow")
    root = tmp_path / "s"
    root.mkdir()
    reported = until_death(root, prompts, system, sync, budget)
    system.cut(rng)
    kept = reported if sync is Sync.FULL and budget is None else []
    check_survivors(root, prompts, kept)


# -- several servers, and the clock ----------------------------------------------


@cases(6)
def test_two_servers_of_different_settings(tmp_path: Path, seed: int) -> None:
    """They never see each other, though one copies the other's files over its own."""
    rng = random.Random(seed)
    name = rng.choice(list(OTHERS))
    prompts = some_prompts(rng)
    mine, theirs = open_store(tmp_path), open_store(tmp_path, OTHERS[name])
    for prompt in prompts:
        put(mine, prompt)
        assert find(theirs, prompt) == 0
    for prompt in prompts:
        put(theirs, prompt, OTHERS[name])
    source = rng.choice(objects(theirs))
    target = Path(mine.namespace.path) / source.relative_to(theirs.namespace.path)
    shutil.copyfile(source, target)
    check_promise(mine, prompts)
    check_promise(theirs, prompts, OTHERS[name])
    mine.close()
    theirs.close()


@cases(6)
def test_two_servers_that_evict_each_others_records(tmp_path: Path, seed: int) -> None:
    """Both write at once with room for one prompt; one of them may be killed."""
    rng = random.Random(seed)
    prompts = some_prompts(rng)
    budget = rng.choice([5, 8, 12, 40]) * 8192
    at = rng.choice([1 << 60, rng.randrange(150)])

    def live(order: list[Prompt], system: Dying) -> None:
        for _ in range(3):
            until_death(tmp_path, order, system, Sync.NONE, budget)

    open_store(tmp_path).close()
    with ThreadPoolExecutor(2) as servers:
        one = servers.submit(live, prompts, Dying(1 << 60, raise_killed))
        other = servers.submit(live, prompts[::-1], Dying(at, raise_killed))
        one.result(timeout=30)
        other.result(timeout=30)
    check_survivors(tmp_path, prompts, [])


@cases(3)
def test_clock_goes_backwards(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the process, and of the files: all times of the disk are made up."""
    rng = random.Random(seed)
    clock = itertools.count(2_000_000_000, -rng.randrange(1, 10_000_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 1_000_000_000)
    prompts = some_prompts(rng)
    store = filled(tmp_path, prompts)
    for path in objects(store):
        at = rng.choice([0, 1, -5, rng.randrange(1 << 33)])
        os.utime(path, (at, at))
    if rng.random() < 0.5:
        store.close()
        store = open_store(tmp_path)
    for prompt in prompts:
        assert served(store, prompt) == len(prompt.pages)
    check_promise(store, prompts)
    store.close()
    tight = open_store(tmp_path, budget_bytes=SMALL_BUDGET)
    assert put(tight, Prompt.of("new")) is Stored.WRITTEN
    assert served(tight, Prompt.of("new")) == 1
    tight.close()
