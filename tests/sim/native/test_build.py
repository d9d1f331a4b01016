"""Building C++ libraries: a small CMake project with the real compiler."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.sim.native import build, toolchain
from harness.sim.native.build import BuildRecipe
from harness.sim.native.toolchain import BuildError, Toolchain
from tests.sim.native.toy import Toy, call

pytestmark = pytest.mark.acceptance

_ONE, _TWO = "parts/toy/csrc/one.cpp", "parts/toy/csrc/two.cpp"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy", tmp_path / "cache")


@pytest.fixture
def pipes(tmp_path: Path) -> Path:
    """Return the pipe on which a compiler reports its start. It waits on the pipe with the suffix ``.go``."""
    for name in ("held", "held.go"):
        os.mkfifo(tmp_path / name)
    return tmp_path / "held"


def test_a_library_is_built_once_and_reported(toy: Toy) -> None:
    library = toy.build()
    assert library == toy.cache / "toy" / toy.key() / "libtoy.so"
    assert (call(library, "one"), call(library, "two")) == (1, 2)
    assert toy.compiled() == ["one.cpp", "two.cpp"]
    first, *steps, last = toy.said
    assert re.fullmatch(r"building the toy with .+, since '.*/cache/toy' has no build of these sources with it", first)
    assert {re.sub(r"\d of \d", "N of N", line) for line in steps} == {
        "building the toy: N of N (compiling parts/toy/csrc/one.cpp)",
        "building the toy: N of N (compiling parts/toy/csrc/two.cpp)",
        "building the toy: N of N (linking libtoy.so)",
    }
    assert re.fullmatch(r"built the toy in \d+ s", last)
    assert toy.build() == library
    assert toy.compiled() == []
    assert len(toy.said) == 5
    assert not list(toy.cache.rglob("new-*"))


def test_other_folders_share_the_build(toy: Toy, tmp_path: Path) -> None:
    """Two clones of the project and two installations of its dependencies share the build."""
    library = toy.build()
    other = Toy(tmp_path / "another clone", toy.cache)
    assert other.tools.folders != toy.tools.folders
    assert other.key() == toy.key()
    assert other.build() == library
    assert other.compiled() == other.said == []


def test_a_change_in_another_folder_compiles_what_it_concerns(toy: Toy, tmp_path: Path) -> None:
    toy.build()
    other = Toy(tmp_path / "another clone", toy.cache)
    other.write(_TWO, 'extern "C" int two() { return 22; }\n')
    library = other.build()
    assert (call(library, "one"), call(library, "two")) == (1, 22)
    assert other.compiled() == ["two.cpp"]
    shutil.rmtree(toy.root)
    other.write(_TWO, 'extern "C" int two() { return 222; }\n')
    assert call(other.build(), "two") == 222
    assert other.compiled() == ["two.cpp"]


@pytest.mark.parametrize(
    ("name", "text", "again"),
    [
        (_ONE, "// more\n", ["one.cpp"]),
        ("parts/toy/csrc/one.h", "// more\n", ["one.cpp"]),
        ("parts/toy/two.def", "// more\n", ["two.cpp"]),
        ("parts/toy/csrc/new.cpp", "int more;\n", ["new.cpp"]),
        ("parts/toy/CMakeLists.txt", "target_compile_options(toy PRIVATE -g)\n", ["one.cpp", "two.cpp"]),
        ("CMakeLists.txt", "# more\n", []),
    ],
)
def test_a_change_makes_another_library(toy: Toy, name: str, text: str, again: list[str]) -> None:
    before = toy.build()
    toy.compiled()
    file = toy.root / name
    old = file.read_text() if file.exists() else ""
    toy.write(name, old + text)
    assert toy.build() != before
    assert toy.compiled() == again
    if old:  # the earlier library is still in the cache
        toy.write(name, old)
        assert toy.build() == before
        assert toy.compiled() == []


@pytest.mark.parametrize("name", ["parts/toy/csrc/tests/three.cpp", "parts/toy/csrc/notes.txt", "outside/outside.h"])
def test_a_change_of_what_is_no_source_makes_no_other_library(toy: Toy, name: str) -> None:
    before = toy.key()
    toy.write(name, "changed\n")
    assert toy.key() == before


def test_a_source_that_is_removed_is_no_longer_linked(toy: Toy) -> None:
    toy.build()
    (toy.root / _TWO).unlink()
    assert b"two" not in toy.build().read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda tools: replace(tools, compiler=(*tools.compiler, "-v")),
        lambda tools: replace(tools, identity=("pretending 1.1",)),
        lambda tools: replace(tools, flags=("-O1",)),
        lambda tools: replace(tools, variables={"SETTING": "2"}),
    ],
)
def test_another_toolchain_makes_another_library(toy: Toy, change: Callable[[Toolchain], Toolchain]) -> None:
    assert toy.key(change(toy.tools)) != toy.key()


def test_the_same_compiler_on_another_path_makes_the_same_library(toy: Toy, tmp_path: Path) -> None:
    elsewhere = tmp_path / "compiler"
    elsewhere.symlink_to(toy.tools.compiler[0])
    moved = replace(toy.tools, compiler=(str(elsewhere), *toy.tools.compiler[1:]))
    assert toy.build() == toy.build(moved)
    toy.write(_ONE, 'extern "C" int one() { return 11; }\n')
    assert call(toy.build(moved), "one") == 11


def test_two_processes_at_once_build_once(toy: Toy, pipes: Path) -> None:
    go = Path(f"{pipes}.go")
    with toy.start(HELD=str(pipes)) as first:
        assert pipes.read_text() == "begun\n"  # the first one compiles, and holds the lock
        with toy.start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another process that builds the toy\n"
            go.write_text("go\n")
            assert pipes.read_text() == "begun\n"
            go.write_text("go\n")
            other = second.stdout.read()
        assert first.stdout is not None
        own = first.stdout.read().splitlines()[-1]
    assert (first.returncode, second.returncode) == (0, 0)
    assert other.splitlines() == [own]
    assert toy.compiled() == ["one.cpp", "two.cpp"]


def test_after_a_builder_was_killed_the_next_one_waits_for_its_compiler_only(toy: Toy, pipes: Path) -> None:
    with toy.start(HELD=str(pipes)) as first:
        assert pipes.read_text() == "begun\n"
        first.send_signal(signal.SIGKILL)
    assert not list(toy.cache.rglob("libtoy.so"))
    with toy.start() as second:
        assert second.stdout is not None
        assert second.stdout.readline().startswith("building the toy with ")
        assert second.stdout.readline() == "waiting for the compilers of a process that was killed\n"
        Path(f"{pipes}.go").write_text("go\n")
        library = Path(second.stdout.read().splitlines()[-1]) / "libtoy.so"
    assert second.returncode == 0
    assert (call(library, "one"), call(library, "two")) == (1, 2)


def test_an_interrupted_build_ends_its_compilers(toy: Toy, pipes: Path) -> None:
    with toy.start(HELD=str(pipes)) as first:
        assert pipes.read_text() == "begun\n"
        first.send_signal(signal.SIGINT)
    assert first.returncode != 0
    assert not list(toy.cache.rglob("libtoy.so"))
    assert call(toy.build(), "one") == 1
    assert "waiting" not in "".join(toy.said)


def test_a_compile_error_is_shown(toy: Toy) -> None:
    toy.write(_ONE, "int x = BROKEN;\n")
    with pytest.raises(BuildError) as caught:
        toy.build()
    text = str(caught.value)
    assert re.match(
        rf"compiling {_ONE} failed with status 1, so the toy cannot be built; the full output is in '", text
    )
    (shown,) = text.splitlines()[1:]
    assert re.fullmatch(rf"  {_ONE}:1:9: error: .*BROKEN.*", shown)
    assert "BROKEN" in Path(text.split("'")[1]).read_text()
    assert not list(toy.cache.rglob("*.so"))
    toy.write(_ONE, 'extern "C" int one() { return 11; }\n')
    assert call(toy.build(), "one") == 11


def test_a_link_error_is_shown(toy: Toy) -> None:
    toy.write("parts/toy/CMakeLists.txt", "add_library(toy SHARED csrc/two.cpp)\ntarget_link_libraries(toy -lnone)\n")
    with pytest.raises(BuildError, match=r"^linking libtoy.so failed with status 1.*\n.*-lnone"):
        toy.build()


def test_an_error_of_cmake_is_shown_with_what_follows(toy: Toy) -> None:
    toy.write("parts/toy/CMakeLists.txt", 'message(FATAL_ERROR "no such part")\n')
    with pytest.raises(
        BuildError, match=r"^cmake failed with status 1(.|\n)*parts/toy/CMakeLists.txt:1(.|\n)*no such part"
    ):
        toy.build()


def test_a_library_that_is_not_made_is_named(toy: Toy) -> None:
    with pytest.raises(BuildError, match=r"^CMake made no 'libother.so'"):
        build.build_libraries(replace(toy.recipe(), files=("libother.so",)), toy.said.append, environ=toy.environ)


def test_a_damaged_build_tree_is_made_again(toy: Toy) -> None:
    toy.build()
    (cache,) = toy.cache.rglob("CMakeCache.txt")
    cache.write_text(cache.read_text().replace(str(toy.cache), "/elsewhere"))
    toy.write(_ONE, 'extern "C" int one() { return 11; }\n')
    assert call(toy.build(), "one") == 11


def test_an_incomplete_library_folder_is_replaced(toy: Toy) -> None:
    folder = toy.cache / "toy" / toy.key()
    (folder / "rest").mkdir(parents=True)
    assert toy.build().parent == folder
    assert [entry.name for entry in folder.iterdir()] == ["libtoy.so"]


def test_what_was_not_used_for_a_month_is_removed(toy: Toy) -> None:
    old = toy.build()
    (tree,) = old.parent.parent.glob("tree-*")
    lock, unused = old.parent.parent / "somebody.lock", old.parent.parent / "tree-of-another-toolchain"
    lock.touch()
    unused.mkdir()
    for entry in (lock, unused, old.parent, tree):
        os.utime(entry, (0, 0))
    toy.write(_ONE, 'extern "C" int one() { return 11; }\n')
    new = toy.build()
    assert sorted(entry.name for entry in new.parent.parent.iterdir()) == sorted(
        [new.parent.name, tree.name, "building.lock", "somebody.lock"]
    )


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
    recipe = BuildRecipe("the toy", "toy", Path(), (), (), (), Toolchain((), "", ()))
    assert str(build.writable_cache_root(environ, recipe.noun) / recipe.folder) == folder


def test_a_cache_that_cannot_be_used_is_named(toy: Toy) -> None:
    toy.cache.write_text("a file, and no folder")
    with pytest.raises(BuildError, match=r"cannot write the toy to '.*/cache/toy' .*HARNESS_CACHE_DIR"):
        toy.build()


def test_sources_that_are_missing_are_named(toy: Toy) -> None:
    recipe = toy.recipe()
    with pytest.raises(BuildError, match=r"no C\+\+ sources of the toy in '.*/toy/nowhere': reinstall the harness"):
        build.cache_key(replace(recipe, sources=("nowhere",)))
    (toy.root / "CMakeLists.txt").unlink()
    with pytest.raises(BuildError, match=r"cannot read '.*/CMakeLists.txt', a source of the toy \(No such file"):
        toy.build()


def test_missing_headers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "torch_folder", lambda: tmp_path)
    with pytest.raises(BuildError, match="has no C\\+\\+ headers"):
        toolchain.find_torch_toolchain()


@pytest.mark.parametrize(("limit", "jobs"), [("2", 2), ("1", 1)])
def test_as_many_compilers_run_as_are_allowed(limit: str, jobs: int) -> None:
    assert build.compiler_jobs({"MAX_JOBS": limit}) == jobs


def test_flags_come_from_the_environment_too() -> None:
    plain = toolchain.find_torch_toolchain()
    more = toolchain.find_torch_toolchain({**os.environ, "CXXFLAGS": f"{os.environ.get('CXXFLAGS', '')} -g -DX='a b'"})
    assert more.flags == (*plain.flags, "-g", "-DX=a b")
    assert more.key() != plain.key()


def test_a_compiler_and_flags_of_several_words(toy: Toy) -> None:
    toy.write(_TWO, '#include <string.h>\nextern "C" int two() { return strlen(TEXT); }\n')
    tools = replace(
        toy.tools, compiler=(shutil.which("env") or "", *toy.tools.compiler, "-O1"), flags=('-DTEXT="a b c"', "-w")
    )
    assert call(toy.build(tools), "two") == len("a b c")


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for programs. The packages of cmake and ninja are not found."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def _program(folder: Path, name: str, version: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho {name} version {version}\n")
    (folder / name).chmod(0o755)


def test_programs_of_the_path_serve_if_they_are_new_enough(only_path: Path) -> None:
    environ = {"PATH": f"{only_path}:/bin"}
    _program(only_path, "cmake", "3.20.0")
    assert build.find_program("cmake", "the toy", environ) == str(only_path / "cmake")
    _program(only_path, "cmake", "3.19.8")
    with pytest.raises(BuildError) as caught:
        build.find_program("cmake", "the toy", environ)
    assert str(caught.value) == (
        f"the toy needs cmake 3.20 or newer, and '{only_path}/cmake' is 3.19.8: install it with `pip install cmake`"
    )
    with pytest.raises(BuildError, match=r"^the toy needs ninja 1\.11 or newer: install it with `pip install ninja`$"):
        build.find_program("ninja", "the toy", {"PATH": str(only_path)})


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("Building CXX object CMakeFiles/toy.dir/core/queue.cpp.o", "compiling core/queue.cpp"),
        ("Linking CXX shared library /cache/tree/out/libtoy.so.1", "linking libtoy.so.1"),
        ("Creating library symlink /cache/tree/out/libtoy.so", "linking libtoy.so"),
    ],
)
def test_the_progress_names_what_is_made(step: str, shown: str) -> None:
    assert build.format_ninja_step(step) == shown
