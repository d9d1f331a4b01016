"""Building the software device with the real compiler, and without one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sim.native import build as native
from harness.sim.native.toolchain import BuildError
from harness.sim.softdevice import build
from tests.sim.softdevice import inside

pytestmark = [pytest.mark.acceptance, pytest.mark.long]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"PATH": "/nowhere"},
            "needs a C++ compiler: $CXX is not set, and $PATH has none of c++, g++, clang++",
        ),
        ({"CXX": "'"}, '$CXX is not a valid command: "\'"'),
        ({"CXX": "/nowhere/cc"}, "'/nowhere/cc' does not start"),
        ({"CXX": "false"}, "'false' --version ended with status 1"),
        ({"CXXFLAGS": "'"}, '$CXXFLAGS is not a valid list of options: "\'"'),
    ],
)
def test_a_compiler_that_cannot_be_used_is_reported(environ: dict[str, str], said: str) -> None:
    with pytest.raises(BuildError) as caught:
        build.build_softdevice(environ={"PATH": os.environ["PATH"], "HOME": "/h", **environ})
    assert said in str(caught.value)


def test_the_real_library_is_built_by_hand_without_torch() -> None:
    library = inside.library()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness.sim.softdevice.build"],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, place = done.stdout.split()[0], done.stdout.split()[-1]
    assert float(seconds) >= 0
    assert Path(place) == library
    assert not re.search(r"\|\s+torch$", done.stderr, re.MULTILINE)
    assert build.describe_build()["key"] == library.parent.name


def test_the_library_names_no_folder_of_its_build() -> None:
    """Clones and environments share it, and each of them may be removed."""
    contents = inside.library().read_bytes()
    assert b"from/TORCH/include/" in contents  # torch's messages contain their source path
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    for folder in (str(build.ROOT), str(Path(torch.origin).parent), "/tree-"):
        assert folder.encode() not in contents


def test_plain_cmake_gives_an_editor_every_source(tmp_path: Path) -> None:
    program = native.find_program("cmake", "this test", os.environ)
    ninja = native.find_program("ninja", "this test", os.environ)
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [program, "-S", str(build.ROOT), "-B", str(tmp_path), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"],
        env=environ,
        capture_output=True,
        check=True,
    )
    listed = {os.path.realpath(each["file"]) for each in json.loads((tmp_path / "compile_commands.json").read_text())}
    assert {str(file.resolve()) for file in build.CSRC.rglob("*.cpp")} <= listed
