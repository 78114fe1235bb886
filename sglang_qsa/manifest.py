"""The record of every change made to upstream, and the check that it is true.

`patches/manifest.toml` has one entry per hook and per source diff. Run as a command,
this module compares it with the hooks, the diffs and the installed upstream:

    python -m sglang_qsa.manifest            # exit code 2 and one line per problem
    python -m sglang_qsa.manifest --update   # accept the installed sources
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from importlib import import_module, metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from sglang_qsa.errors import ConfigError, QsaError, refusal
from sglang_qsa.source import target_source

ORIGIN = "patches/manifest.toml"
KINDS = ("hook", "diff")
MODES = ("before", "after", "around", "replace", "bind")
"""How a hook changes its target: SGLang's hook types, and a rebound name."""


class Hook(Protocol):
    """What the manifest reads of an entry of `sglang_qsa.hooks.HOOKS`."""

    @property
    def id(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def mode(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRecord:
    """One change to upstream; the fields are the keys of a `[[patch]]` table."""

    id: str
    """The id of a hook, or the name of a `.patch` file, which is `NNNN-topic`."""
    kind: str
    target: str
    """Dotted path of what is changed."""
    mode: str = ""
    """How a hook wraps its target; empty for a diff."""
    upstream: str
    """`distribution==version` it was written and tested against."""
    only_with: str = ""
    """Package that is optional, and without which nothing of this is reached."""
    target_sha256: str
    reason: str
    """What breaks without it."""
    upstream_pr: str = ""
    no_pr: str = ""
    """Why there is no pull request, where there is none."""
    remove_when: str
    """The observable event that ends the need for it."""


def load_manifest() -> tuple[PatchRecord, ...]:
    """The records of the installed manifest, in file order.

    Raises:
        ConfigError: the file is not TOML or a record breaks the format.
    """
    return parse_manifest(_resource("manifest.toml").read_text(encoding="utf-8"))


def parse_manifest(text: str) -> tuple[PatchRecord, ...]:
    """Records of a manifest given as TOML text; see `load_manifest`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{ORIGIN}: found broken TOML ({error})") from None
    tables = document.pop("patch", [])
    if document or not isinstance(tables, list):
        raise ConfigError(
            refusal(
                found=f"{sorted(document) or 'patch as one table'}",
                wanted="[[patch]] tables only",
                origin=ORIGIN,
                way_out="move or remove it",
            )
        )
    records = tuple(_record(number, table) for number, table in enumerate(tables, 1))
    ids = [record.id for record in records]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        raise ConfigError(f"{ORIGIN}: found {repeated} twice; wanted each id once")
    return records


def target_digest(target: str) -> str:
    """sha256 of the source of `target`, as `inspect.getsource` would return it.

    Raises:
        UpstreamMismatch: nothing of that name is installed.
    """
    return hashlib.sha256(target_source(target).encode()).hexdigest()


def verify_manifest() -> list[str]:
    """What is not as recorded, one line each; empty when all is.

    Records that belong to a package which is not installed are left out: whoever
    needs that package is told of it by its name (`preflight`).
    """
    try:
        records = load_manifest()
    except ConfigError as error:
        return [str(error)]
    problems = [*_unmatched_hooks(records), *_unmatched_diffs(records)]
    for record in records:
        if not record.only_with or find_spec(record.only_with):
            problems.extend(_upstream_problems(record))
    return problems


def update_digests(text: str) -> str:
    """`text` with every `target_sha256` set to the installed source's."""
    digests = iter([target_digest(record.target) for record in parse_manifest(text)])
    line = re.compile(r'^target_sha256 = "[^"]*"', re.MULTILINE)
    return line.sub(lambda _: f'target_sha256 = "{next(digests)}"', text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m sglang_qsa.manifest")
    parser.add_argument(
        "--update", action="store_true", help="accept the installed sources"
    )
    options = parser.parse_args(arguments)
    try:
        if options.update:
            path = Path(str(_resource("manifest.toml")))
            path.write_text(update_digests(path.read_text(encoding="utf-8")))
        problems = verify_manifest()
    except QsaError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 2 if problems else 0


def _resource(name: str) -> Traversable:
    return files("sglang_qsa_patches") / name


def _record(number: int, table: object) -> PatchRecord:
    if not isinstance(table, dict):
        raise ConfigError(f"{ORIGIN}: found {table!r}; wanted [[patch]] tables only")
    origin = f"{ORIGIN}, {table.get('id') or f'record {number}'}"
    names = {field.name for field in fields(PatchRecord)}
    if unknown := sorted(table.keys() - names):
        raise ConfigError(f"{origin}: found key(s) {unknown}; wanted {sorted(names)}")
    required = {field.name for field in fields(PatchRecord) if field.default is MISSING}
    if missing := sorted(required - table.keys()):
        raise ConfigError(f"{origin}: found no {missing}; wanted every key; add it")
    if wrong := [key for key, value in table.items() if not isinstance(value, str)]:
        raise ConfigError(f"{origin}: found {wrong} not text; wanted strings")
    record = PatchRecord(**table)
    for wanted, holds in _RULES.items():
        if not holds(record):
            raise ConfigError(f"{origin}: wanted {wanted}; correct the record")
    return record


_RULES: dict[str, Callable[[PatchRecord], bool]] = {
    f"kind among {KINDS}": lambda r: r.kind in KINDS,
    "id in small letters and hyphens": lambda r: bool(
        re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", r.id)
    ),
    "id as NNNN-topic for a diff": lambda r: bool(
        r.kind == "hook" or re.match(r"\d{4}-", r.id)
    ),
    f"mode among {MODES} for a hook, none for a diff": lambda r: (
        r.mode in MODES if r.kind == "hook" else not r.mode
    ),
    "target as a dotted path": lambda r: bool(
        re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", r.target)
    ),
    "upstream as distribution==version": lambda r: bool(
        re.fullmatch(r"[\w.-]+==[\w.+]+", r.upstream)
    ),
    "a reason": lambda r: bool(r.reason.strip()),
    "remove_when": lambda r: bool(r.remove_when.strip()),
    "either upstream_pr or no_pr": lambda r: bool(r.upstream_pr) != bool(r.no_pr),
    "upstream_pr as an https URL": lambda r: (
        not r.upstream_pr or r.upstream_pr.startswith("https://")
    ),
}


def _unmatched_hooks(records: Iterable[PatchRecord]) -> Iterator[str]:
    hooks: dict[str, Hook] = {hook.id: hook for hook in _hooks()}
    recorded = {record.id: record for record in records if record.kind == "hook"}
    for name in sorted(hooks.keys() - recorded.keys()):
        yield f"{name}: found a hook; wanted its record in {ORIGIN}; add one"
    for name in sorted(recorded.keys() - hooks.keys()):
        yield f"{name}: found a record; wanted its hook in sglang_qsa.hooks.HOOKS"
    for name in sorted(hooks.keys() & recorded.keys()):
        for key in ("target", "mode"):
            found, wanted = getattr(recorded[name], key), getattr(hooks[name], key)
            if found != wanted:
                yield f"{name}: found {key} {found} in {ORIGIN}; wanted {wanted}"


def _hooks() -> tuple[Hook, ...]:
    hooks: tuple[Hook, ...] = import_module("sglang_qsa.hooks").HOOKS
    return hooks


def _unmatched_diffs(records: Iterable[PatchRecord]) -> Iterator[str]:
    entries = [entry.name for entry in files("sglang_qsa_patches").iterdir()]
    diffs = {name.removesuffix(".patch") for name in entries if name.endswith(".patch")}
    recorded = {record.id for record in records if record.kind == "diff"}
    for name in sorted(diffs - recorded):
        yield f"{name}.patch: found a diff; wanted its record in {ORIGIN}; add one"
    for name in sorted(recorded - diffs):
        yield f"{name}: found a record; wanted patches/{name}.patch"


def _upstream_problems(record: PatchRecord) -> Iterator[str]:
    distribution, _, wanted = record.upstream.partition("==")
    try:
        found = metadata.version(distribution)
        digest = target_digest(record.target)
    except (metadata.PackageNotFoundError, QsaError) as error:
        yield f"{record.id}: {error}"
        return
    if found != wanted:
        yield f"{record.id}: found {distribution} {found} installed; wanted {wanted}"
    if digest != record.target_sha256:
        yield (
            f"{record.id}: found {record.target} with digest {digest[:16]}…; wanted "
            f"{record.target_sha256[:16] or 'none yet'}…; read the new source, then "
            "run `python -m sglang_qsa.manifest --update`"
        )


if __name__ == "__main__":
    sys.exit(main())
