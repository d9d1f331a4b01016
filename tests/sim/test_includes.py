"""C++ modules only include modules below them. A module is a header and the source of the same name, or one of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SIM = Path(__file__).parents[2] / "harness" / "sim"

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+\.h)"', re.MULTILINE)

#: Folders in which headers are found by name alone, relative to `SIM`. The file's own folder comes first; the order of
#: the others depends on the device that the file is compiled for.
_SEARCHED = (
    "simcuda/csrc/include",
    "simcuda/csrc/nccl/headers",
    "simcuda/csrc/operators",
    "softdevice/csrc/aten",
    "softdevice/csrc/operators",
)


def _included(file: Path, root: Path) -> Iterator[Path]:
    for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
        beside = (file.parent / name).resolve()
        places = [beside] if beside.is_file() else [(root / folder / name).resolve() for folder in _SEARCHED]
        found = [place for place in places if place.is_file()]
        assert found, f"{file} includes {name}, which is in no known folder"
        yield from found


@functools.cache
def _modules(root: Path) -> Mapping[str, set[str]]:
    """Return the includes of each module below `root`, by its path without suffix."""
    root = root.resolve()
    graph: dict[str, set[str]] = {}
    for file in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        name = file.relative_to(root).with_suffix("").as_posix()
        others = {other.relative_to(root).with_suffix("").as_posix() for other in _included(file, root)}
        graph.setdefault(name, set()).update(others - {name})
    return graph


def _circles(graph: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """Return the largest sets of modules that all reach each other, each sorted."""

    def reached(start: str) -> set[str]:
        known: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - known
            known |= new
            waiting += new
        return known

    below = {name: reached(name) for name in graph}
    return {
        tuple(sorted(other for other in below[name] if name in below[other])) for name in graph if name in below[name]
    }


def test_no_modules_include_each_other_in_a_circle() -> None:
    circles = _circles(_modules(SIM))
    assert not circles, "\n".join(" <-> ".join(circle) for circle in sorted(circles))


def test_all_sources_are_read() -> None:
    graph = _modules(SIM)
    folders = {name.rpartition("/")[0] for name in graph}
    assert {"interposer/csrc", "simcuda/csrc/runtime", "softdevice/csrc/core", "softdevice/csrc/core/tests"} <= folders
    assert "simcuda/csrc/runtime/stream" in graph["simcuda/csrc/runtime/stream_calls"]


@pytest.mark.parametrize("back", ["c.h", "c.cpp"])
def test_a_circle_would_be_found(back: str, tmp_path: Path) -> None:
    """A header or a source can close the cycle. A module that only leads to the cycle is not part of it."""
    texts = {"a.cpp": "b", "b.h": "c", "c.h": "d", "d.h": ""}
    texts[back] = "b"
    for name, other in texts.items():
        (tmp_path / name).write_text(f'#include "{other}.h"\n' if other else "", encoding="utf-8")
    assert _circles(_modules(tmp_path)) == {("b", "c")}
