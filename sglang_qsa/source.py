"""Source text of a dotted target, read without importing it.

The digest of a patched function has to be checkable before each commit and on
machines where upstream cannot be imported, so nothing of upstream runs here: files
are found by name and definitions by syntax.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from sglang_qsa.errors import UpstreamMismatch

_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    is_package: bool
    lines: tuple[str, ...]
    tree: ast.Module

    def text(self, definition: _Definition) -> str:
        """What `inspect.getsource` returns: decorators first, comments included."""
        decorators = [node.lineno for node in definition.decorator_list]
        first = min([definition.lineno, *decorators])
        return "".join(inspect.getblock(list(self.lines[first - 1 :])))


def target_source(target: str) -> str:
    """Source of the module, class, function or method that `target` names.

    Re-exports and base classes are followed. A name defined more than once in one
    scope (a property and its setter, the branches of an `if`) gives all of its
    definitions; one definition gives exactly what `inspect.getsource` does.

    Args:
        target: dotted path, `package.module[.Class][.function]`.

    Raises:
        UpstreamMismatch: nothing of that name is defined.
    """
    module, names = _split(target)
    if not names:
        return "".join(module.lines)
    owner, found = _lookup(module, names)
    if not found:
        raise UpstreamMismatch(
            f"{target}: found no definition of {'.'.join(names)} in {module.name}; "
            "wanted one; name the place that defines it in the installed version"
        )
    return "".join(owner.text(definition) for definition in found)


def _split(target: str) -> tuple[_Module, list[str]]:
    """The longest module that `target` starts with, and the names that remain."""
    first, *names = target.split(".")
    spec = find_spec(first)
    if spec is None:
        raise UpstreamMismatch(
            f"{target}: found no package {first}; wanted it installed; "
            "run `make setup` or install the pinned version"
        )
    file = Path(spec.origin) if spec.origin else None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    path = [first]
    for name in names:
        inner = _child(folders, name)
        if inner is None:
            break
        file, folders = inner
        path.append(name)
    return _module(".".join(path), file, bool(folders)), names[len(path) - 1 :]


def _child(folders: Sequence[Path], name: str) -> tuple[Path | None, list[Path]] | None:
    """File and folders of a submodule, in the import system's order of preference."""
    for folder in folders:
        if (file := folder / name / "__init__.py").is_file():
            return file, [folder / name]
        if (file := folder / f"{name}.py").is_file():
            return file, []
    # A folder without __init__.py; much of SGLang is written so.
    spaces = [folder / name for folder in folders if (folder / name).is_dir()]
    return (None, spaces) if spaces else None


def _module(name: str, file: Path | None, is_package: bool) -> _Module:
    if file is None or file.suffix != ".py":
        raise UpstreamMismatch(
            f"{name}: found no Python source ({file}); wanted a .py file; "
            "name a target that is written in Python"
        )
    return _parse(name, is_package, file)


@lru_cache(maxsize=64)
def _parse(name: str, is_package: bool, path: Path) -> _Module:
    text = path.read_text(encoding="utf-8")
    return _Module(
        name, is_package, tuple(text.splitlines(keepends=True)), ast.parse(text)
    )


def _lookup(module: _Module, names: Sequence[str]) -> tuple[_Module, list[_Definition]]:
    """Definitions of the dotted `names`, and the module that they are written in."""
    if written := _written(module.tree.body, names):
        return module, written
    same_name = list(_definitions(module.tree.body, names[0]))
    if not same_name:
        return _follow(module, names)
    for node in same_name:
        for base in filter(None, map(_dotted, getattr(node, "bases", ()))):
            look = _follow if base == names[0] else _lookup
            owner, inherited = look(module, [*base.split("."), *names[1:]])
            if inherited:
                return owner, inherited
    return module, []


def _written(body: Sequence[ast.stmt], names: Sequence[str]) -> list[_Definition]:
    """Definitions of the dotted `names` in `body` itself, without base classes."""
    found = list(_definitions(body, names[0]))
    if len(names) == 1:
        return found
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return [inner for node in classes for inner in _written(node.body, names[1:])]


def _follow(module: _Module, names: Sequence[str]) -> tuple[_Module, list[_Definition]]:
    """Continue in the module that `module` imported `names[0]` from."""
    imports = _imports(module)
    origins = imports.get(names[0], [f"{star}.{names[0]}" for star in imports["*"]])
    for origin in origins:
        if find_spec(origin.split(".")[0]) is None:
            continue
        owner, rest = _split(".".join([origin, *names[1:]]))
        if rest and owner.name != module.name:
            owner, found = _lookup(owner, rest)
            if found:
                return owner, found
    return module, []


def _definitions(body: Sequence[ast.stmt], name: str) -> Iterator[_Definition]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                yield node
        else:
            for branch in _branches(node):
                yield from _definitions(branch, name)


def _branches(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statement lists of an `if`, `try` or `with`."""
    for field in ("body", "orelse", "finalbody"):
        if branch := getattr(node, field, None):
            yield branch
    for handler in getattr(node, "handlers", ()):
        yield handler.body


def _imports(module: _Module) -> dict[str, list[str]]:
    """Local name -> dotted origins; under `*`, the modules imported whole."""
    origins: dict[str, list[str]] = {"*": []}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                origins[local] = [alias.name if alias.asname else local]
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                if alias.name == "*":
                    origins["*"].append(source)
                else:
                    local = alias.asname or alias.name
                    origins.setdefault(local, []).append(f"{source}.{alias.name}")
    return origins


def _absolute(module: _Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*package, *filter(None, [node.module])])


def _dotted(node: ast.expr) -> str | None:
    """`a.b.C` of a base class expression; the class under a subscript."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None
