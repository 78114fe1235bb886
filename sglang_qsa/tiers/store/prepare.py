"""Make or recognise a store directory before anything else touches it."""

from __future__ import annotations

import json
import os

from sglang_qsa.errors import ConfigError, StoreUnavailable, refusal
from sglang_qsa.tiers.store.namespace import (
    DIRECTORIES,
    NAMESPACE_FILE,
    STORE_FILE,
    Namespace,
    check_root,
    store_manifest,
)
from sglang_qsa.tiers.store.system import System

_MAY_BE_THERE = {"lost+found"}


def prepare(namespace: Namespace, system: System) -> None:
    """Create what is missing of a store and of one of its namespaces.

    Both manifests are synced whatever the policy: they are written once.

    Raises:
        ConfigError: the directory belongs to something else or to another schema.
        StoreUnavailable: it cannot be created or written.
    """
    root = namespace.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / STORE_FILE).exists():
            _refuse_strangers(namespace)
            _write_manifest(f"{root}/{STORE_FILE}", store_manifest(), system)
        check_root(root)
        _make(namespace.path, system)
        for name in DIRECTORIES:
            _make(namespace.folder(name), system)
        _claim(namespace, system)
        system.sync_directory(str(root))
    except OSError as error:
        raise StoreUnavailable(
            refusal(
                found=error.strerror or str(error),
                wanted="a directory that this process may write to",
                origin=str(error.filename or root),
                way_out="correct its owner, its mode or its file system",
            )
        ) from error


def _refuse_strangers(namespace: Namespace) -> None:
    """An unmarked directory may hold nothing but namespaces of ours."""
    root = namespace.root
    strangers = sorted(
        entry.name
        for entry in root.iterdir()
        if not entry.name.startswith(".")
        and entry.name not in _MAY_BE_THERE
        and entry.name != STORE_FILE  # another server was faster
        and not (entry / NAMESPACE_FILE).is_file()
    )
    if strangers:
        raise ConfigError(
            refusal(
                found=f"{len(strangers)} entries that are not ours ({strangers[0]}, …)",
                wanted="an empty directory, or a store",
                origin=str(root),
                way_out="name a directory of its own for the store",
            )
        )


def _make(path: str, system: System) -> None:
    try:
        system.mkdir(path)
    except FileExistsError:
        return


def _claim(namespace: Namespace, system: System) -> None:
    """Write the manifest of the namespace, or compare it with the one there.

    One that is no JSON was cut or damaged and is written again: every record repeats
    the identity, so nothing depends on it but the tools.
    """
    path = f"{namespace.path}/{NAMESPACE_FILE}"
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (FileNotFoundError, ValueError):
        _write_manifest(path, namespace.manifest(), system)
        return
    if document != namespace.manifest():
        raise ConfigError(
            refusal(
                found="another identity under this layout id, or a damaged file",
                wanted=f"the manifest of {namespace.name}",
                origin=path,
                way_out="remove this file if the server's settings are right",
            )
        )


def _write_manifest(path: str, document: dict[str, object], system: System) -> None:
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}-{os.urandom(8).hex()}"
    data = memoryview(json.dumps(document, indent=1).encode() + b"\n")
    fd = system.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        written = system.write(fd, [data], 0)
        if written != len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes of {temporary}")
        system.sync_file(fd)
    finally:
        system.close(fd)
    system.rename(temporary, path)
    system.sync_directory(folder)
