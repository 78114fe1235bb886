"""Where records lie, and who may read them.

    <root>/store.json                       names the format and its schema
    <root>/<layout id>-tp<rank>of<size>/    one namespace: records of equal bytes
        namespace.json                      the identity behind the layout id
        pages/ checkpoints/ commits/        one file per record, named by its key
        intents/ sessions/ trash/           work in progress of living processes
        quarantine/                         what failed verification

The directories are flat: the file systems this runs on index their names, and one
directory per kind is one fsync per kind.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_qsa.errors import ConfigError, LayoutMismatch, refusal
from sglang_qsa.layout import Layout
from sglang_qsa.tiers.store.record import SCHEMA, Kind, file_bytes

FORMAT = "sglang-qsa-store"
STORE_FILE = "store.json"
NAMESPACE_FILE = "namespace.json"
QUARANTINE, SESSIONS, TRASH = "quarantine", "sessions", "trash"
FOLDERS = {
    Kind.PAGE: "pages",
    Kind.CHECKPOINT: "checkpoints",
    Kind.COMMIT: "commits",
    Kind.INTENT: "intents",
}
_SIZES = ("page_bytes", "checkpoint_bytes", "page_tokens")
DIRECTORIES = (*FOLDERS.values(), QUARANTINE, SESSIONS, TRASH)


@dataclass(frozen=True, slots=True)
class Namespace:
    """The records of one rank of one deployment, below `root`."""

    root: Path
    name: str
    page_bytes: int
    checkpoint_bytes: int
    page_tokens: int
    identity: dict[str, object]
    """What the layout id is the digest of, for people."""

    @classmethod
    def of(cls, root: Path, layout: Layout, tp_rank: int) -> Namespace:
        """The namespace that a rank of a server reads and writes.

        Raises:
            LayoutMismatch: `tp_rank` is not a rank of the layout.
        """
        tp_size = layout.geometry.tp_size
        if not 0 <= tp_rank < tp_size:
            raise LayoutMismatch(
                refusal(
                    found=f"tp rank {tp_rank}",
                    wanted=f"a rank below {tp_size}",
                    origin=str(root),
                    way_out="give the rank and the layout of the same server",
                )
            )
        return cls(
            root,
            f"{layout.layout_id}-tp{tp_rank}of{tp_size}",
            layout.page_bytes,
            layout.checkpoint_bytes,
            layout.geometry.page_tokens,
            layout.identity(),
        )

    @property
    def path(self) -> str:
        return str(self.root / self.name)

    def folder(self, name: str) -> str:
        return f"{self.path}/{name}"

    def file(self, kind: Kind, key: str) -> str:
        return f"{self.path}/{FOLDERS[kind]}/{key}"

    def payload_bytes(self, kind: Kind) -> int | None:
        """Length of a record of `kind`; None where each says its own."""
        if kind is Kind.PAGE:
            return self.page_bytes
        return self.checkpoint_bytes if kind is Kind.CHECKPOINT else None

    def file_bytes(self, kind: Kind) -> int:
        """Length of the file of a page or a checkpoint."""
        payload_bytes = self.payload_bytes(kind)
        assert payload_bytes is not None, kind
        return file_bytes(payload_bytes)

    def manifest(self) -> dict[str, object]:
        """What `namespace.json` holds."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "namespace": self.name,
            "page_bytes": self.page_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "page_tokens": self.page_tokens,
            "identity": self.identity,
        }


def store_manifest() -> dict[str, object]:
    """What `store.json` holds."""
    return {"format": FORMAT, "schema": SCHEMA}


def read_namespaces(root: Path) -> tuple[Namespace, ...]:
    """The namespaces of a store as their manifests describe them, by name.

    A subdirectory without a manifest of ours is somebody else's and left out.

    Raises:
        ConfigError: `root` is not a store, or one of another schema.
    """
    check_root(root)
    found = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        try:
            document = json.loads((folder / NAMESPACE_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        namespace = _from_manifest(root, document)
        if namespace is not None and namespace.name == folder.name:
            found.append(namespace)
    return tuple(found)


def check_root(root: Path) -> None:
    """Refuse a directory that is not a store of this schema.

    Raises:
        ConfigError: see above.
    """
    origin = str(root / STORE_FILE)
    try:
        document = json.loads((root / STORE_FILE).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            refusal(
                found=error.strerror or str(error),
                wanted="the manifest of a store",
                origin=origin,
                way_out="name the directory that a server was started with",
            )
        ) from error
    except ValueError as error:
        raise ConfigError(
            refusal(
                found="malformed JSON",
                wanted=json.dumps(store_manifest()),
                origin=origin,
                way_out="remove this file and start a server on the directory",
            )
        ) from error
    if document != store_manifest():
        raise ConfigError(
            refusal(
                found=json.dumps(document),
                wanted=json.dumps(store_manifest()),
                origin=origin,
                way_out="use the version that wrote it, or another directory",
            )
        )


def _from_manifest(root: Path, document: Any) -> Namespace | None:
    if not isinstance(document, dict):
        return None
    sizes: list[int] = [document.get(name, 0) for name in _SIZES]
    if not all(type(size) is int and size > 0 for size in sizes):
        return None
    page_bytes, checkpoint_bytes, page_tokens = sizes
    namespace = Namespace(
        root,
        str(document.get("namespace")),
        page_bytes,
        checkpoint_bytes,
        page_tokens,
        document.get("identity", {}),
    )
    return namespace if namespace.manifest() == document else None
