"""The names of the standard library that the harness uses in the process of a case, found in its source."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import harness

_HARNESS = Path(harness.__file__).parent
#: The files whose code runs in the process of a case.
_WHERE = (
    "executor/*.py",
    "checks/**/*.py",
    "protocol/*.py",
    "backends/*.py",
    "_compat.py",
    "fixtures.py",
    *(f"core/{name}.py" for name in ("clock", "linux", "plain_values", "text")),
)
#: Modules whose names are not used after the import.
_STATIC = frozenset({"__future__", "abc", "collections.abc", "dataclasses", "enum", "typing", "types"})


def used_names() -> list[str]:
    """Return the full names of the functions and classes that can be replaced."""
    files = sorted({path for pattern in _WHERE for path in _HARNESS.glob(pattern)})
    found = {name for path in files for name in _names(ast.parse(path.read_text(encoding="utf-8")))}
    return sorted(name for name in found if name.rpartition(".")[0] not in _STATIC and _is_replaceable(name))


def _names(tree: ast.Module) -> Iterator[str]:
    modules = dict(_imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and _is_of_python(node.module):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            first, _, rest = path.partition(".")
            if first in modules and rest.replace(".", "").isidentifier():
                yield f"{modules[first]}.{rest}"


def _imports(tree: ast.Module) -> Iterable[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_of_python(alias.name):
                    yield alias.asname or alias.name.partition(".")[0], alias.name
    yield "", ""


def _is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def owner_of(name: str) -> object:
    """Return the object whose attribute has this full name; None if there is none."""
    parts = name.split(".")[:-1]
    for length in range(len(parts), 0, -1):
        try:
            owner: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part, None)
        return owner
    return None


def _is_replaceable(name: str) -> bool:
    owner, last = owner_of(name), name.rpartition(".")[2]
    value = getattr(owner, last, None)
    if not callable(value):
        return False
    try:
        setattr(owner, last, value)
    except (AttributeError, TypeError):  # an attribute of a class written in C
        return False
    if isinstance(owner, type) and not isinstance(vars(owner).get(last), type(value)):
        setattr(owner, last, vars(owner)[last])
    return True
