"""Imports go downwards: each package only imports packages below it, and no two files import each other."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent.parent / "harness"

#: Packages and files of the harness from the bottom up. Those in one row are on one level and do not import each other.
FLOORS = (
    ("__init__", "_compat", "core"),
    ("backends", "protocol"),
    ("checks", "devices", "marks", "ranks"),
    ("fixtures", "gating", "sim"),
    ("catalog", "configuration", "executor", "journal"),
    ("progress", "reporting", "scheduling"),
    ("collection",),
    ("zygote",),
    ("supervisor",),
    ("controller",),
    ("plugin", "tools"),
    ("fleet", "ready"),
    ("cli", "entry"),
    ("__main__",),
)


def _module(path: Path) -> str:
    parts = path.relative_to(HARNESS.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {_module(path): path for path in sorted(HARNESS.rglob("*.py"))}


@functools.cache
def _statements(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Return the imports of a file, and whether each is at the top level: needed to import the file itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(tree.body)
    # An import is a statement, so expressions can be skipped.
    waiting: list[ast.AST] = [tree]
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, node in top))
        else:
            blocks = (getattr(node, name, ()) for name in ("body", "orelse", "finalbody", "handlers", "cases"))
            waiting += [child for block in blocks if isinstance(block, list) for child in block]
    return tuple(found)


def _imports(path: Path, modules: Mapping[str, Path], *, at_start: bool) -> Iterator[str]:
    """Yield those of `modules` that a file imports; `at_start`: only those needed to import the file itself."""
    for node, at_top in _statements(path):
        if at_start and not at_top:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif node.module is not None:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in whole if name in modules)
            if node.module in modules and not all(name in modules for name in whole):
                yield node.module


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _graph(modules: Mapping[str, Path], *, at_start: bool) -> Mapping[str, set[str]]:
    return {name: {*_imports(path, modules, at_start=at_start)} - {name} for name, path in modules.items()}


@functools.cache
def graph(*, at_start: bool) -> Mapping[str, set[str]]:
    """Return the import graph of the harness. Reading all files takes a second, so collection does not do it."""
    return _graph(MODULES, at_start=at_start)


def test_every_room_has_a_floor() -> None:
    assert {_room(name) for name in MODULES} == {room for floor in FLOORS for room in floor}


@pytest.mark.parametrize("room", [room for floor in FLOORS for room in floor])
def test_a_room_imports_rooms_below_it_only(room: str) -> None:
    """Imports within functions count, too: they defer a dependency, but do not reverse it."""
    heights = {name: height for height, floor in enumerate(FLOORS) for name in floor}
    upwards = [
        f"{name} imports {other}"
        for name, others in graph(at_start=False).items()
        for other in sorted(others)
        if _room(name) == room and _room(other) != room and heights[_room(other)] >= heights[room]
    ]
    assert not upwards, "\n".join(upwards)


def test_no_files_import_each_other_in_a_circle() -> None:
    try:
        list(TopologicalSorter(graph(at_start=True)).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_a_circle_would_be_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("from harness import second\n")
    second.write_text("from harness.first import name\n")
    graph = _graph({"harness.first": first, "harness.second": second}, at_start=True)
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())


def test_the_verdict_needs_no_executor() -> None:
    """The code that judges must not import the code that runs cases: it judges in the process that survives them."""
    reached = {"harness.supervisor.judgement"}
    waiting = list(reached)
    while waiting:
        new = graph(at_start=True)[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert not [name for name in reached if _room(name) == "executor"]


#: Constructors that take a function which is no clock, with the reason. Others take values, objects of their own floor
#: or of a lower one, and protocols, so that a reader who follows a name finds what is called.
_TAKE_FUNCTIONS = {
    "AcceleratorCounters": "the number of devices is a function of each kind of device",
    "Capabilities": "capabilities are probed when they are first asked for",
    "ChildWatch": "the fixtures that live change while the watch exists",
    "CollectorPlugin": "the function that never returns: the process becomes a fork server",
    "DeviceLeases": "a line about a wait goes to the terminal of the caller",
    "Head": "a line about the cluster goes to the terminal of the caller",
    "Heartbeat": "the thread calls it in turn",
    "LiveScreen": "what is drawn belongs to the screen's owner",
    "Names": "the ids are read only for names that are too long",
    "ParentWatch": "a test replaces the look into /proc",
    "PinnedArenas": "a test replaces the look into /proc",
    "Prober": "the release of torch is looked for in another process, once",
    "SettingsSection": "the rows of a section depend on what is imported",
    "SignsOfLife": "the snapshot is taken for each line",
    "ZygoteClient": "a line about a wait goes to the journal of the caller",
    "_Loader": "the function runs after an import that somebody else makes",
}


def _functions_taken(node: ast.ClassDef) -> Iterator[str]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for argument in [*method.args.args, *method.args.kwonlyargs]:
                written = ast.unparse(argument.annotation) if argument.annotation else ""
                if "Callable" in written and argument.arg != "clock":
                    yield argument.arg


def test_constructors_take_objects_and_no_functions() -> None:
    classes = [
        node
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert {node.name for node in classes if [*_functions_taken(node)]} == _TAKE_FUNCTIONS.keys()
