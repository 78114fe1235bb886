"""The format of one file of the store.

A file is one header block of 4,096 bytes, then the payload padded with zeros to a
multiple of 4,096, so that both can be moved with O_DIRECT. The header, little-endian:

    offset  bytes  field
         0      8  magic `QSARECRD`
         8      4  schema
        12      4  kind (1 page, 2 checkpoint, 3 commit, 4 intent)
        16      8  payload length, without padding
        24     64  namespace, ASCII, padded with NUL
        88    128  key, ASCII, padded with NUL
       216     16  XXH3-128 of the payload with its padding
       232   3848  zeros
      4080     16  XXH3-128 of the 4,080 bytes before

Both digests together cover every bit of the file. XXH3 finds damage, not forgery: who
can write to the directory can serve any bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA = 1
"""Bump when a byte of header, commit or intent changes its meaning."""

BLOCK = 4_096
"""Bytes that O_DIRECT wants offsets, lengths and addresses to be a multiple of."""

KEY = re.compile(r"[0-9a-f]{16,128}")
"""What a key may look like; it becomes a file name and a field of the header."""

_MAGIC = b"QSARECRD"
_FIELDS = struct.Struct("<8sIIQ64s128s16s")
_DIGEST = struct.Struct("<16s")


class Kind(IntEnum):
    """What a file holds; the numbers are part of the format."""

    PAGE = 1
    CHECKPOINT = 2
    COMMIT = 3
    INTENT = 4


class Outcome(StrEnum):
    """How the read of one record ended; all but `HIT` are misses."""

    HIT = "hit"
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    """The system refused: I/O error, permission."""
    LENGTH = "length"
    HEADER = "header"
    FOREIGN = "foreign"
    """A sound record of another schema, deployment or rank."""
    KEY = "key"
    """A sound record of this namespace under another record's name."""
    CHECKSUM = "checksum"


class Damaged(Exception):
    """A file is not the record that its name promises."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Label:
    """What a record says it is, and what its place in the directory says."""

    namespace: str
    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class Header:
    """The checked facts of a header block."""

    payload_bytes: int
    digest: bytes


def padded(payload_bytes: int) -> int:
    """`payload_bytes` and the zeros after it."""
    return -(-payload_bytes // BLOCK) * BLOCK


def file_bytes(payload_bytes: int) -> int:
    """Length of the file of a record."""
    return BLOCK + padded(payload_bytes)


def pack_header(label: Label, payload_bytes: int, digest: bytes) -> bytes:
    """The header block of a record whose padded payload has `digest`."""
    fields = _FIELDS.pack(
        _MAGIC,
        SCHEMA,
        label.kind,
        payload_bytes,
        label.namespace.encode("ascii"),
        label.key.encode("ascii"),
        digest,
    )
    block = fields.ljust(BLOCK - _DIGEST.size, b"\0")
    return block + xxhash.xxh3_128_digest(block)


def check_header(block: Buffer, label: Label) -> Header:
    """Read a header block and compare it with where it was found.

    Args:
        block: [4,096] bytes.
        label: what the place of the file promises.
    Raises:
        Damaged: broken, foreign, or the header of another record.
    """
    view = memoryview(block)[:BLOCK]
    covered, stored = view[: -_DIGEST.size], view[-_DIGEST.size :]
    if xxhash.xxh3_128_digest(covered) != stored:
        raise Damaged(Outcome.HEADER)
    magic, schema, kind, payload_bytes, namespace, key, digest = _FIELDS.unpack_from(
        view
    )
    if magic != _MAGIC:
        raise Damaged(Outcome.HEADER)
    if schema != SCHEMA or _text(namespace) != label.namespace:
        raise Damaged(Outcome.FOREIGN)
    if (kind, _text(key)) != (label.kind, label.key):
        raise Damaged(Outcome.KEY)
    return Header(payload_bytes, digest)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("ascii", "replace")
