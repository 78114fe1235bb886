"""The store without faults, and the cases of the public reports."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_qsa.errors import ConfigError, LayoutMismatch
from sglang_qsa.tiers.store.directory import Read
from sglang_qsa.tiers.store.files import Sync
from sglang_qsa.tiers.store.memory import after
from sglang_qsa.tiers.store.record import Kind, Label, Outcome, file_bytes, pack_header
from sglang_qsa.tiers.store.system import System
from sglang_qsa.tiers.store.writer import Page, Stored
from tests.deployments import DEPLOYMENTS, layout_of
from tests.messages import assert_refusal
from tests.tiers.store.small import (
    LAYOUT,
    OTHERS,
    Prompt,
    content,
    find,
    get,
    layout_with,
    misses,
    open_store,
    put,
    served,
)

SHORT = Prompt.of("a", "b")
LONG = Prompt.of("a", "b", "c", "d")
FORK = Prompt.of("a", "b", "x")


@pytest.mark.parametrize("sync", Sync)
def test_put_survives_a_restart(tmp_path: Path, sync: Sync) -> None:
    store = open_store(tmp_path, sync=sync)
    assert served(store, LONG) == 0
    assert put(store, LONG) is Stored.WRITTEN
    assert put(store, LONG) is Stored.PRESENT
    assert served(store, LONG) == 4
    store.close()
    again = open_store(tmp_path)
    assert served(again, LONG) == 4
    assert again.contains(LONG.checkpoint)
    assert again.tally.count("records", "page", "hit") == 4
    again.close()


def test_longest_boundary_with_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, SHORT)
    put(store, LONG)
    assert find(store, LONG) == 4
    assert find(store, Prompt.of("a", "b", "c", "d", "e")) == 4
    assert find(store, Prompt.of("a", "b", "c")) == 2
    assert find(store, Prompt.of("a")) == 0
    assert find(store, Prompt.of("z", "b")) == 0
    assert store.longest_prefix(LONG.pages[1:]) == 3
    store.close()


def test_commit_of_other_pages_is_a_miss(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    other = Prompt.of("x", "y")
    pages = [Page(key, content(LAYOUT, Kind.PAGE, key)) for key in other.pages]
    state = content(LAYOUT, Kind.CHECKPOINT, SHORT.checkpoint)
    assert store.put(SHORT.checkpoint, state, pages) is Stored.WRITTEN
    assert served(store, SHORT) == 0
    assert store.tally.count("records", "page", "absent") == 2
    assert find(store, SHORT) == 0
    store.close()


def test_shared_pages_are_written_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, SHORT)
    put(store, FORK)
    assert store.tally.count("records", "page", "written") == 3
    pages = [Page(key, None) for key in LONG.pages[:2]]
    pages += [Page(key, content(LAYOUT, Kind.PAGE, key)) for key in LONG.pages[2:]]
    state = content(LAYOUT, Kind.CHECKPOINT, LONG.checkpoint)
    assert store.put(LONG.checkpoint, state, pages) is Stored.WRITTEN
    assert served(store, LONG) == 4
    store.close()


def test_page_that_nobody_has_is_no_commit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    state = content(LAYOUT, Kind.CHECKPOINT, SHORT.checkpoint)
    pages = [Page(key, None) for key in SHORT.pages]
    assert store.put(SHORT.checkpoint, state, pages) is Stored.INCOMPLETE
    assert find(store, SHORT) == 0
    assert store.tally.count("puts", "incomplete") == 1
    store.close()


def test_two_servers_share_a_directory(tmp_path: Path) -> None:
    one, other = open_store(tmp_path), open_store(tmp_path)
    put(one, SHORT)
    assert served(other, SHORT) == 2
    put(other, FORK)
    assert served(one, FORK) == 3
    one.close()
    assert served(other, SHORT) == 2
    other.close()


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_never_see_each_other(tmp_path: Path, name: str) -> None:
    mine, theirs = open_store(tmp_path), open_store(tmp_path, OTHERS[name])
    put(mine, LONG)
    assert find(theirs, LONG) == 0
    assert set(get(theirs, LONG, OTHERS[name]).values()) == {Outcome.ABSENT}
    assert put(theirs, LONG, OTHERS[name]) is Stored.WRITTEN
    assert served(mine, LONG) == served(theirs, LONG, OTHERS[name]) == 4
    mine.close()
    theirs.close()


def test_ranks_never_see_each_other(tmp_path: Path) -> None:
    layout = layout_with(tp_size=2)
    first = open_store(tmp_path, layout, tp_rank=0)
    second = open_store(tmp_path, layout, tp_rank=1)
    put(first, SHORT, layout)
    assert find(second, SHORT) == 0
    with pytest.raises(LayoutMismatch) as refused:
        open_store(tmp_path, layout, tp_rank=2)
    assert_refusal(refused.value, found="tp rank 2")
    first.close()
    second.close()


def test_record_of_another_server_is_foreign(tmp_path: Path) -> None:
    """Copied by hand, same length, sound checksums: still not ours."""
    mine, theirs = open_store(tmp_path), open_store(tmp_path, OTHERS["dtype"])
    put(mine, SHORT)
    put(theirs, SHORT, OTHERS["dtype"])
    page = SHORT.pages[0]
    source = theirs.namespace.file(Kind.PAGE, page)
    os.replace(source, mine.namespace.file(Kind.PAGE, page))
    assert get(mine, SHORT)[Kind.PAGE, page] is Outcome.FOREIGN
    assert find(mine, SHORT) == 0
    mine.close()
    theirs.close()


@pytest.mark.parametrize("lost", range(3))
def test_case_2_one_object_of_the_set_is_missing(tmp_path: Path, lost: int) -> None:
    store = open_store(tmp_path)
    put(store, SHORT)
    put(store, LONG)
    store.close()
    names = [*LONG.names[2:4], LONG.names[4]]
    os.unlink(store.namespace.file(*names[lost]))
    again = open_store(tmp_path)
    assert served(again, LONG) == 2  # the next lower whole boundary
    os.unlink(again.namespace.file(*SHORT.names[0]))
    assert served(again, LONG) == 0
    assert again.tally.count("records", "page", "absent") == 1
    assert find(again, LONG) == 0
    assert again.tally.count("lookups", "incomplete") == 1
    again.close()


def test_case_14_truncated_and_flipped_object(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    prompt = Prompt.of("a", "b", "c")
    put(store, Prompt.of("a"))
    put(store, prompt)
    os.truncate(store.namespace.file(*prompt.names[1]), 10)
    flip(Path(store.namespace.file(*prompt.names[2])), bit=8 * 5000)
    outcomes = get(store, prompt)
    assert [outcomes[name] for name in prompt.names] == [
        Outcome.HIT,
        Outcome.LENGTH,
        Outcome.CHECKSUM,
        Outcome.HIT,
    ]
    assert store.tally.count("quarantined") == 2
    assert get(store, prompt)[prompt.names[2]] is Outcome.ABSENT
    assert served(store, prompt) == 1
    assert put(store, prompt) is Stored.WRITTEN
    assert served(store, prompt) == 3
    store.close()


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_wrong_lengths_and_keys_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    state = content(LAYOUT, Kind.CHECKPOINT, SHORT.checkpoint)
    with pytest.raises(LayoutMismatch) as refused:
        store.put(SHORT.checkpoint, state[1:], [])
    assert_refusal(refused.value, found="bytes under key")
    for key in ("", "../../etc/passwd", "A" * 16, "a" * 129):
        with pytest.raises(LayoutMismatch):
            store.get([Read(Kind.CHECKPOINT, key, state)])
    store.close()


def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("weights")
    with pytest.raises(ConfigError) as refused:
        open_store(tmp_path)
    assert_refusal(refused.value, origin=str(tmp_path), found="model.safetensors")
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_other_schema_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / "store.json").write_text('{"format": "sglang-qsa-store", "schema": 9}')
    with pytest.raises(ConfigError) as refused:
        open_store(tmp_path)
    assert_refusal(refused.value, found='"schema": 9')


def test_other_identity_under_the_same_id_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    manifest = Path(store.namespace.path) / "namespace.json"
    manifest.write_text(manifest.read_text().replace('"Small"', '"Other"'))
    with pytest.raises(ConfigError) as refused:
        open_store(tmp_path)
    assert_refusal(refused.value, origin="namespace.json")
    manifest.write_bytes(b"\0" * 100)  # cut in the middle: written again
    open_store(tmp_path).close()
    assert '"Small"' in manifest.read_text()


def test_stranger_beside_the_namespaces_is_ignored(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, SHORT)
    (tmp_path / "notes").mkdir()
    (Path(store.namespace.folder("pages")) / "README").write_text("hello")
    store.close()
    again = open_store(tmp_path, budget_bytes=1 << 30)
    assert put(again, FORK) is Stored.WRITTEN
    assert served(again, SHORT) == 2
    assert (Path(store.namespace.folder("pages")) / "README").exists()
    again.close()


def test_bytes_of_a_file(tmp_path: Path) -> None:
    """The format as its module describes it, written down a second time."""
    store = open_store(tmp_path)
    put(store, SHORT)
    key = SHORT.checkpoint
    data = Path(store.namespace.file(Kind.CHECKPOINT, key)).read_bytes()
    payload = bytes(content(LAYOUT, Kind.CHECKPOINT, key))
    padding = b"\0" * (-len(payload) % 4096)
    assert padding
    header = struct.pack(
        "<8sIIQ64s128s16s3848x",
        b"QSARECRD",
        1,
        2,
        len(payload),
        f"{LAYOUT.layout_id}-tp0of1".encode(),
        key.encode(),
        xxhash.xxh3_128(payload + padding).digest(),
    )
    assert data == header + xxhash.xxh3_128(header).digest() + payload + padding
    entry = Path(store.namespace.file(Kind.COMMIT, key)).read_bytes()
    assert entry[4096:].rstrip(b"\0").decode().split() == list(SHORT.pages)
    store.close()


def test_header_is_pinned() -> None:
    block = pack_header(Label("n", Kind.PAGE, "0" * 16), 5, b"d" * 16)
    assert xxhash.xxh3_128_hexdigest(block) == ("07cf0a685842765004b5fd717e10fc34")


@pytest.mark.parametrize("bit", range(0, 8 * 4096, 8 * 113 + 1))
def test_any_flipped_bit_of_a_header_is_noticed(tmp_path: Path, bit: int) -> None:
    """Those between the fields too."""
    store = open_store(tmp_path)
    put(store, SHORT)
    flip(Path(store.namespace.file(*SHORT.names[0])), bit)
    assert get(store, SHORT)[SHORT.names[0]] is Outcome.HEADER
    assert store.tally.count("quarantined", "page", "header") == 1
    store.close()


@pytest.mark.parametrize("change", [-(1 << 20), -4096, -1, 1, 4096])
def test_any_other_length_is_noticed(tmp_path: Path, change: int) -> None:
    """A block too many as well, though the record before it is sound."""
    store = open_store(tmp_path)
    put(store, SHORT)
    for name in (SHORT.names[0], SHORT.names[-1]):
        path = store.namespace.file(*name)
        os.truncate(path, max(0, os.path.getsize(path) + change))
        assert get(store, SHORT)[name] is Outcome.LENGTH
        assert find(store, SHORT) == 0
    assert store.tally.count("quarantined") == 2
    store.close()


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_files_cost_a_hundredth(name: str) -> None:
    """A prompt of 32,768 tokens in files, against its bare records."""
    layout = layout_of(DEPLOYMENTS[name])
    pages = 32_768 // layout.geometry.page_tokens
    records = pages * layout.page_bytes + layout.checkpoint_bytes
    entry = file_bytes(pages * len(f"{SHORT.checkpoint}\n"))
    files = pages * file_bytes(layout.page_bytes) + file_bytes(layout.checkpoint_bytes)
    assert files + entry <= 1.01 * records


@given(size=st.integers(1, 3 * 4096))
def test_file_is_whole_blocks(size: int) -> None:
    assert file_bytes(size) % 4096 == 0
    assert 4096 + size <= file_bytes(size) < 4096 + size + 4096


def test_record_of_several_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes do not depend on how many calls move them."""
    assert LAYOUT.checkpoint_bytes > 4096
    for chunk in (4096, 4 << 20):
        monkeypatch.setattr("sglang_qsa.tiers.store.files._CHUNK", chunk)
        writer = open_store(tmp_path / f"{chunk}")
        put(writer, SHORT)
        writer.close()
        for other in (4096, 4 << 20):
            monkeypatch.setattr("sglang_qsa.tiers.store.files._CHUNK", other)
            reader = open_store(tmp_path / f"{chunk}")
            assert served(reader, SHORT) == 2
            reader.close()


@given(sizes=st.lists(st.integers(0, 5), max_size=4), done=st.integers(0, 20))
def test_what_is_left_of_a_short_write(sizes: list[int], done: int) -> None:
    data = [memoryview(bytes([n]) * size) for n, size in enumerate(sizes)]
    assert b"".join(after(data, done)) == b"".join(data)[done:]


class FailsThenLags(System):
    """The first part of a payload cannot be read, and the second comes late."""

    closed = late = False

    def __init__(self) -> None:
        self._second_reads = threading.Event()

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        if offset == 4096:
            assert self._second_reads.wait(timeout=5)
            raise OSError(errno.EIO, "first part")
        if offset == 2 * 4096:
            self._second_reads.set()
            time.sleep(0.1)
            self.late = self.closed
        return super().read(fd, into, offset)

    def close(self, fd: int) -> None:
        self.closed = True
        super().close(fd)


def test_file_is_open_until_all_parts_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late part would read from whatever file got the number."""
    monkeypatch.setattr("sglang_qsa.tiers.store.files._CHUNK", 4096)
    system = FailsThenLags()
    store = open_store(tmp_path, system=system)
    put(store, SHORT)
    system.closed = False
    state = content(LAYOUT, Kind.CHECKPOINT, SHORT.checkpoint)
    (outcome,) = store.get([Read(Kind.CHECKPOINT, SHORT.checkpoint, state)])
    store.close()
    assert outcome is Outcome.UNREADABLE
    assert not system.late


words = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None)
@given(prompts=st.lists(words, min_size=1, max_size=5))
def test_any_prompts_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[str]]
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"))
    for prompt in prompts:
        assert put(store, Prompt.of(*prompt)) in (Stored.WRITTEN, Stored.PRESENT)
    for prompt in prompts:
        assert served(store, Prompt.of(*prompt)) == len(prompt)
    assert misses(store) == 0 or store.tally.count("lookups", "absent") == 0
    store.close()


def test_importing_the_arguments_needs_no_library() -> None:
    root = Path(__file__).parents[3]
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        "from sglang_qsa.cli import main; main(['store', 'ls', '--help'])"
    )
    subprocess.run(
        [sys.executable, "-S", "-I", "-c", program], check=True, capture_output=True
    )
