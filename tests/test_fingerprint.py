"""Weights that differ have other fingerprints; copies have the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_qsa.errors import ConfigError
from sglang_qsa.fingerprint import fingerprint_checkpoint
from tests.messages import assert_refusal

SHARD_BYTES = 1 << 20
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for number, name in enumerate((FIRST, SECOND)):
        data = bytes((i * 31 + number) % 251 for i in range(4096))
        (folder / name).write_bytes(data * (SHARD_BYTES // 4096))
    return folder


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


def test_copy_elsewhere_is_equal(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "deeper" / "renamed"
    shutil.copytree(checkpoint, copy)
    assert fingerprint_checkpoint(copy) == fingerprint_checkpoint(checkpoint)


def test_moved_folder_is_equal(checkpoint: Path, tmp_path: Path) -> None:
    before = fingerprint_checkpoint(checkpoint)
    assert fingerprint_checkpoint(checkpoint.rename(tmp_path / "moved")) == before


def test_order_of_the_folder_does_not_matter(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems list names in any order."""
    before = fingerprint_checkpoint(checkpoint)
    names = sorted(checkpoint.iterdir())
    for order in (names, names[::-1]):
        monkeypatch.setattr(Path, "iterdir", lambda _self, order=order: iter(order))
        assert fingerprint_checkpoint(checkpoint) == before


def test_linked_files_are_equal(checkpoint: Path, tmp_path: Path) -> None:
    """Hugging Face's cache holds links to blobs."""
    links = tmp_path / "snapshot"
    links.mkdir()
    for file in checkpoint.iterdir():
        (links / file.name).symlink_to(file)
    assert fingerprint_checkpoint(links) == fingerprint_checkpoint(checkpoint)


def test_other_files_do_not_matter(checkpoint: Path) -> None:
    before = fingerprint_checkpoint(checkpoint)
    (checkpoint / "README.md").write_text("text")
    (checkpoint / "model.safetensors").mkdir()
    assert fingerprint_checkpoint(checkpoint) == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of a header": lambda d: flip(d / FIRST, 9),
    "a byte of another shard's header": lambda d: flip(d / SECOND, 9),
    "a byte of a sampled block": lambda d: flip(d / SECOND, SHARD_BYTES // 2 + 100),
    "a byte of the last block": lambda d: flip(d / FIRST, SHARD_BYTES * 15 // 16),
    "one byte more": lambda d: (d / FIRST).open("ab").write(b"\0"),
    "a shard less": lambda d: (d / SECOND).unlink(),
    "a renamed shard": lambda d: (d / SECOND).rename(d / "other.safetensors"),
    "the model config": lambda d: (d / "config.json").write_text('{"a": 1}'),
    "no model config": lambda d: (d / "config.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_noticed(checkpoint: Path, change: str) -> None:
    before = fingerprint_checkpoint(checkpoint)
    CHANGES[change](checkpoint)
    assert fingerprint_checkpoint(checkpoint) != before


def test_exchanged_shards_are_noticed(checkpoint: Path) -> None:
    before = fingerprint_checkpoint(checkpoint)
    first, second = checkpoint / FIRST, checkpoint / SECOND
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    assert fingerprint_checkpoint(checkpoint) != before


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(1000))
    prints = {fingerprint_checkpoint(tmp_path)}
    for offset in range(0, 1000, 37):
        flip(file, offset)
        prints.add(fingerprint_checkpoint(tmp_path))
    assert len(prints) == 1 + len(range(0, 1000, 37))


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        fingerprint_checkpoint(tmp_path)
    assert_refusal(caught.value, origin=str(tmp_path), found="no weight files")
