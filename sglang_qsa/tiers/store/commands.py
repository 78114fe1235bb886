"""What `sglang-qsa store` does. A server may use the store at the same time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from sglang_qsa.errors import ConfigError, StoreUnavailable, refusal
from sglang_qsa.tiers.store.files import RecordFiles, Sync
from sglang_qsa.tiers.store.gc import Collector
from sglang_qsa.tiers.store.namespace import QUARANTINE, Namespace, read_namespaces
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.references import keys_of, read_references
from sglang_qsa.tiers.store.session import Session
from sglang_qsa.tiers.store.stats import Tally
from sglang_qsa.tiers.store.system import System
from sglang_qsa.tiers.store.verify import Verifier

DAMAGED = 1
"""Exit code of `verify` where it found damage and was not to repair it."""


def run(options: argparse.Namespace) -> int:
    """One action on all namespaces, or the one that was named.

    Raises:
        ConfigError: no store, or no such namespace.
        StoreUnavailable: it cannot be read or written.
    """
    chosen = _chosen(options)
    action = {"ls": _ls, "verify": _verify, "gc": _gc, "stats": _stats}[options.action]
    try:
        documents = {
            namespace.name: action(namespace, options)
            for namespace in tqdm(
                chosen, "namespaces", disable=None, leave=False, file=sys.stderr
            )
        }
    except OSError as error:
        raise StoreUnavailable(
            refusal(
                found=error.strerror or str(error),
                wanted="a store that this user may read and, for gc and repair, write",
                origin=str(error.filename or options.dir),
                way_out="run as the user of the server",
            )
        ) from error
    if options.json:
        print(json.dumps(documents, indent=2))
    else:
        print("\n".join(_as_text(name, doc) for name, doc in documents.items()))
    damaged = any(document.get("clean") is False for document in documents.values())
    repaired = options.action == "verify" and options.repair
    return DAMAGED if damaged and not repaired else 0


def _chosen(options: argparse.Namespace) -> list[Namespace]:
    namespaces = read_namespaces(options.dir)
    if options.namespace is None:
        return list(namespaces)
    chosen = [space for space in namespaces if space.name == options.namespace]
    if not chosen:
        raise ConfigError(
            refusal(
                found=f"no namespace {options.namespace!r}",
                wanted=f"one of {', '.join(s.name for s in namespaces) or 'none'}",
                origin=str(options.dir),
                way_out="leave --namespace out for all of them",
            )
        )
    return chosen


@contextmanager
def _opened(namespace: Namespace, *, writing: bool) -> Iterator[RecordFiles]:
    """The files of a namespace; a reader leaves no trace in it."""
    system = System()
    session = Session(namespace, system) if writing else None
    name = session.name if session is not None else ""
    files = RecordFiles(namespace, name, system, Sync.NONE)
    try:
        if session is not None:
            session.clean_up()
        yield files
    finally:
        files.close()
        if session is not None:
            session.close()


def _ls(namespace: Namespace, _: argparse.Namespace) -> dict[str, Any]:
    with _opened(namespace, writing=False) as files:
        references = read_references(files, Tally())
        counts = references.counts()
        commits = sorted(references.commits.values(), key=lambda commit: -commit.order)
        return {
            "checkpoints": [
                {
                    "key": commit.key,
                    "pages": len(commit.pages),
                    "tokens": len(commit.pages) * namespace.page_tokens,
                    "own_bytes": commit.length
                    + sum(
                        namespace.file_bytes(kind)
                        for kind, key in commit.names()
                        if counts[kind, key] == 1
                    ),
                    "whole": all(files.present(*name) for name in commit.names()),
                }
                for commit in tqdm(
                    commits, namespace.name, disable=None, leave=False, file=sys.stderr
                )
            ]
        }


def _verify(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    def progress(names: list[tuple[Kind, str]]) -> tqdm[tuple[Kind, str]]:
        return tqdm(
            names,
            namespace.name,
            unit="records",
            disable=None,
            leave=False,
            file=sys.stderr,
        )

    with _opened(namespace, writing=options.repair) as files:
        verifier = Verifier(files)
        verdict = verifier.verify(progress)
        if options.repair:
            verifier.repair(verdict)
    return {
        "clean": verdict.clean,
        "sound": verdict.sound,
        "damaged": [
            {"unit": kind.name.lower(), "key": key, "cause": cause.value}
            for kind, key, cause in verdict.damaged
        ],
        "incomplete": list(verdict.incomplete),
        "repaired": bool(options.repair and not verdict.clean),
    }


def _gc(namespace: Namespace, options: argparse.Namespace) -> dict[str, Any]:
    with _opened(namespace, writing=True) as files:
        collected = Collector(files, Tally()).collect(options.budget_bytes)
    return {
        "evicted_checkpoints": collected.checkpoints,
        "removed_records": collected.records,
        "freed_bytes": collected.freed_bytes,
        "used_bytes": collected.used_bytes,
    }


def _stats(namespace: Namespace, _: argparse.Namespace) -> dict[str, Any]:
    with _opened(namespace, writing=False) as files:
        records = {
            (kind, key)
            for kind in (Kind.PAGE, Kind.CHECKPOINT)
            for key in keys_of(files, kind)
        }
        references = read_references(files, Tally())
        named = references.counts()
        aside = files.system.names(namespace.folder(QUARANTINE))
        return {
            "checkpoints": len(references.commits),
            "pages": sum(kind is Kind.PAGE for kind, _ in records),
            "unnamed_records": sum(name not in named for name in records),
            "quarantined": len(aside),
            "record_bytes": sum(namespace.file_bytes(kind) for kind, _ in records),
            "page_bytes": namespace.page_bytes,
            "checkpoint_bytes": namespace.checkpoint_bytes,
        }


def _as_text(name: str, document: dict[str, Any]) -> str:
    lines = [name]
    for field, value in document.items():
        if isinstance(value, list):
            lines.append(f"  {field}: {len(value)}")
            lines += [f"    {_row(entry)}" for entry in value]
        else:
            lines.append(f"  {field}: {_plain(value)}")
    return "\n".join(lines)


def _row(entry: Any) -> str:
    if isinstance(entry, dict):
        return "  ".join(f"{key} {_plain(value)}" for key, value in entry.items())
    return str(entry)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
