"""Building C++ libraries with a fake compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.sim.native import build, toolchain
from harness.sim.native.build import Library, Plan, Recipe
from harness.sim.native.toolchain import BuildError, Toolchain

#: Concatenates its inputs into its output, and logs them. With $HELD, the path of a pipe, it writes there that it has
#: begun, and then waits for a line from the pipe $HELD.go.
_COMPILER = """#!/bin/sh
for word; do
  case "$before" in -o) output=$word;; esac
  case "$word" in --version) echo "pretending 1.0"; exit 0;; *.cpp|*.o) inputs="$inputs $word";; esac
  before=$word
done
inputs=${inputs% $output}
if [ -n "$HELD" ]; then echo begun > "$HELD"; read -r word < "$HELD.go"; fi
echo "$output <-$inputs" >> "$CALLS"
if grep -hs BROKEN $inputs; then echo "core/one.cpp:1:1: error: BROKEN is no word"; exit 3; fi
cat $inputs > "$output"
"""


class Place:
    """Sources, cache, compiler and environment of a build."""

    def __init__(self, root: Path) -> None:
        self.csrc = root / "csrc"
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.calls.touch()
        self.compiler = root / "pretend"
        self.compiler.write_text(_COMPILER)
        self.compiler.chmod(0o755)
        for name, text in {
            "core/one.cpp": '#include "one.h"\n',
            "core/one.h": '#pragma once\n  #  include "../names.def"\n#include <vector>\n',
            "names.def": "NAME(a)\n",
            "aten/two.cpp": '#include "../core/two.h"\n',
            "aten/large.cpp": "large\n",
            "aten/alike.cpp": "alike\n",
            "core/two.h": "int two;\n",
            "core/tests/three.cpp": "not built\n",
        }.items():
            self.write(name, text)
        self.tools = Toolchain((str(self.compiler),), "pretending 1.0", ("-O7",), ("-shared",), "torch 9", "cp399")
        self.sources = "aten/large.cpp", "core"
        self.environ = {**os.environ, "HARNESS_CACHE_DIR": str(self.cache), "CALLS": str(self.calls)}
        self.said: list[str] = []

    def write(self, name: str, text: str) -> None:
        file = self.csrc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def recipe(self, **changed: object) -> Recipe:
        library = Library("toy.so", self.sources, self.tools, together=("aten",))
        return Recipe("the toy", "toy", self.csrc, (replace(library, **changed),))  # type: ignore[arg-type]

    def plan(self, **changed: object) -> Plan:
        return build.plan_for(self.recipe(**changed))

    def build(self) -> Path:
        return build.build(self.recipe(), self.said.append, environ=self.environ) / "toy.so"

    def compiled(self) -> list[str]:
        """The inputs of each call of the compiler since the last question; "link" for a library's objects."""
        calls = [line.partition(" <- ")[2] for line in self.calls.read_text().splitlines()]
        self.calls.write_text("")
        return sorted("link" if call.endswith(".o") else call for call in calls)


def objects(plan: Plan) -> set[str]:
    return {key for _, _, key in plan.objects()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_library_is_built_once_and_reported(place: Place) -> None:
    library = place.build()
    assert library.parent.parent == place.cache / "toy"
    assert library.read_text() == 'large\n#include "one.h"\nalike\n#include "../core/two.h"\n'
    assert place.compiled() == ["aten/alike.cpp aten/two.cpp", "aten/large.cpp", "core/one.cpp", "link"]
    told = [re.sub(r"\d+ s", "N s", line) for line in place.said]
    assert [re.sub(r"\(.*", "", line) for line in told] == [
        *(f"building the toy: {number} of 3 parts " for number in (1, 2, 3)),
        "built the toy in N s",
    ]
    assert {line.partition("(")[2] for line in told[:3]} == {
        f"{name}, N s)" for name in ("aten", "aten/large.cpp", "core/one.cpp")
    }
    assert place.build() == library
    assert place.compiled() == []
    assert len(place.said) == 4
    assert not list(place.cache.rglob("building-*"))


def test_a_file_of_a_folder_that_is_compiled_as_one_can_stay_alone(place: Place) -> None:
    joined, alone = place.plan(sources=("core",)), place.plan()
    assert [unit.name for _, unit, _ in joined.objects()] == ["core/one.cpp", "aten"]
    assert [unit.name for _, unit, _ in alone.objects()] == ["aten/large.cpp", "core/one.cpp", "aten"]
    assert len(objects(joined) & objects(alone)) == 1, "core/one.cpp is the same; aten is another unit"


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("core/one.cpp", ["core/one.cpp", "link"]),
        ("core/one.h", ["core/one.cpp", "link"]),
        ("names.def", ["core/one.cpp", "link"]),
        ("core/two.h", ["aten/alike.cpp aten/two.cpp", "link"]),
        ("aten/large.cpp", ["aten/large.cpp", "link"]),
        ("aten/new.cpp", ["aten/alike.cpp aten/new.cpp aten/two.cpp", "link"]),
        ("core/tests/three.cpp", []),
        ("core/new.cpp", ["core/new.cpp", "link"]),
    ],
)
def test_a_change_compiles_what_it_concerns(place: Place, name: str, again: list[str]) -> None:
    before = place.build()
    old = (place.csrc / name).read_text() if (place.csrc / name).exists() else ""
    place.compiled()
    place.write(name, old + "// more\n")
    assert (place.build() != before) == bool(again)
    assert place.compiled() == again
    place.write(name, old)
    if old:  # the earlier library is still in the cache
        assert place.build() == before
        assert place.compiled() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda tools: replace(tools, compiler=(*tools.compiler, "-v")),
        lambda tools: replace(tools, compiler_text="pretending 1.1"),
        lambda tools: replace(tools, flags=("-O8",)),
        lambda tools: replace(tools, link=("-shared", "-lm")),
        lambda tools: replace(tools, torch="torch 10"),
        lambda tools: replace(tools, python="cp400"),
    ],
)
def test_another_toolchain_makes_another_library(place: Place, change: Callable[[Toolchain], Toolchain]) -> None:
    before = place.plan()
    after = place.plan(tools=change(place.tools))
    assert after.key != before.key
    assert not objects(after) & objects(before)
    assert place.plan() == before


def test_two_processes_at_once_build_once(place: Place) -> None:
    held = place.cache.parent / "held"
    go = place.cache.parent / "held.go"
    os.mkfifo(held)
    os.mkfifo(go)
    script = (
        "from pathlib import PosixPath; "
        "from harness.sim.native.build import Library, Recipe, build; "
        "from harness.sim.native.toolchain import Toolchain; "
        "one = lambda line: print(line, flush=True); "
        f"print(build({place.recipe()!r}, one) / 'toy.so')"
    )
    environ = {**place.environ, "HELD": str(held), "MAX_JOBS": "1"}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, text=True)

    with start() as first:
        assert held.read_text() == "begun\n"  # the first one compiles, and holds the lock
        with start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another process that builds the toy\n"
            go.write_text("go\n")
            for _ in range(3):  # the other units, and the linking
                assert held.read_text() == "begun\n"
                go.write_text("go\n")
            other = second.stdout.read()
        assert first.stdout is not None
        own = first.stdout.read().splitlines()[-1]
    assert (first.returncode, second.returncode) == (0, 0)
    assert other.splitlines() == [own]
    assert place.compiled() == ["aten/alike.cpp aten/two.cpp", "aten/large.cpp", "core/one.cpp", "link"]


def test_a_compile_error_is_shown(place: Place) -> None:
    place.write("core/one.cpp", "BROKEN\n")
    with pytest.raises(BuildError) as caught:
        place.build()
    text = str(caught.value)
    assert text.startswith("compiling core/one.cpp for the toy failed with status 3; the full output is in")
    assert text.splitlines()[1:] == ["  core/one.cpp:1:1: error: BROKEN is no word"]
    log = text.split("'")[1]
    assert Path(log).read_text() == "BROKEN\ncore/one.cpp:1:1: error: BROKEN is no word\n"
    assert not list(place.cache.rglob("*.so"))
    place.compiled()
    place.write("core/one.cpp", "mended\n")
    assert "mended" in place.build().read_text()


def test_a_source_that_changes_while_it_is_compiled_is_not_kept(place: Place) -> None:
    """Otherwise the object of the new text would be kept under the key of the old one."""
    old = (place.csrc / "core/one.cpp").read_text()
    place.compiler.write_text(f"{_COMPILER}echo changed >> {place.csrc / 'core/one.cpp'}\n")
    with pytest.raises(BuildError, match=r"core/one.cpp, a source of the toy, changed while it was compiled"):
        place.build()
    place.compiler.write_text(_COMPILER)
    place.write("core/one.cpp", old)
    place.compiled()
    place.build()
    assert "core/one.cpp" in place.compiled()


def test_a_link_error_is_shown(place: Place) -> None:
    place.tools = replace(place.tools, link=(str(place.csrc / "none.o"),))
    with pytest.raises(BuildError, match=r"linking for the toy failed with status 1"):
        place.build()


def test_an_incomplete_library_folder_is_replaced(place: Place) -> None:
    folder = place.cache / "toy" / place.plan().key
    (folder / "rest").mkdir(parents=True)
    assert place.build().parent == folder
    assert [entry.name for entry in folder.iterdir()] == ["toy.so"]


def test_what_was_not_used_for_a_month_is_removed(place: Place) -> None:
    old = place.build()
    other = old.parent.parent / "somebody.lock"
    other.touch()
    for entry in [other, old.parent, *(old.parent.parent / "objects").iterdir()]:
        os.utime(entry, (0, 0))
    place.write("core/one.cpp", "new\n")
    new = place.build()
    assert not old.exists()
    assert new.exists()
    assert other.exists()
    kept = {entry.stem for entry in (old.parent.parent / "objects").iterdir()}
    assert kept == objects(place.plan())


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HARNESS_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c/toy"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/gpu-conformance-harness/toy"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gpu-conformance-harness/toy"),
        ({"HARNESS_CACHE_DIR": "", "HOME": "/h"}, "/h/.cache/gpu-conformance-harness/toy"),
        ({"HARNESS_CACHE_DIR": "here"}, f"{os.getcwd()}/here/toy"),
    ],
)
def test_where_libraries_are_kept(environ: dict[str, str], folder: str) -> None:
    assert str(build.cache_folder(environ, Recipe("the toy", "toy", Path(), ()))) == folder


def test_a_cache_that_cannot_be_used_is_named(place: Place) -> None:
    place.cache.write_text("a file, and no folder")
    with pytest.raises(BuildError, match=r"cannot write the toy to '.*/cache/toy' .*HARNESS_CACHE_DIR"):
        place.build()


def test_sources_that_are_missing_are_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ sources of the toy in '.*/nowhere/core', '.*/nowhere/aten'"):
        build.plan_for(replace(place.recipe(sources=("core",)), root=tmp_path / "nowhere"))
    (place.csrc / "names.def").unlink()
    with pytest.raises(BuildError, match=r"cannot read '.*names\.def', a source of the toy"):
        place.build()


def test_missing_headers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "torch_folder", lambda: tmp_path)
    with pytest.raises(BuildError, match="has no C\\+\\+ headers"):
        toolchain.find()


@pytest.mark.parametrize(
    ("files", "environ", "jobs"),
    [(7, {"MAX_JOBS": "3"}, 3), (2, {"MAX_JOBS": "3"}, 2), (0, {}, 1), (9, {"MAX_JOBS": "1"}, 1)],
)
def test_as_many_compilers_run_as_are_allowed(files: int, environ: dict[str, str], jobs: int) -> None:
    assert build._jobs(files, environ) == jobs


def test_flags_come_from_the_environment_too() -> None:
    plain = toolchain.find()
    more = toolchain.find({**os.environ, "CXXFLAGS": f"{os.environ.get('CXXFLAGS', '')} -g -DX='a b'"})
    assert more.flags == (*plain.flags, "-g", "-DX=a b")
    assert more.link == (*plain.link, "-g", "-DX=a b")
