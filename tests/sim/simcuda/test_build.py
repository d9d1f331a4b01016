"""The recipe of the simulated CUDA's libraries, with a fake compiler and folders that look like NVIDIA's wheels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.devices import software
from harness.devices.detected import Detected
from harness.sim.native import build as native
from harness.sim.native.toolchain import BuildError, Toolchain
from harness.sim.simcuda import build, toolchain
from harness.sim.simcuda.toolchain import Toolchains

#: Concatenates its inputs into its output, with the version script if there is one, and logs its arguments.
_COMPILER = """#!/bin/sh
echo "$@" >> "$CALLS"
for word; do
  case "$before" in -o) output=$word;; esac
  case "$word" in *.cpp|*.o) inputs="$inputs $word";; -Wl,--version-script=*) script=${word#*script=};; esac
  before=$word
done
cat ${inputs% $output} $script > "$output"
"""

_SOURCES = {
    "simcuda/csrc/include/simcuda.h": "// ours\n",
    "simcuda/csrc/include/crt/host_defines.h": "// ours too\n",
    "simcuda/csrc/runtime/stream.cpp": "#include <driver_types.h>\n#include <simcuda.h>\nstream\n",
    "simcuda/csrc/runtime/exports.map": "libcudart.so.@MAJOR@ { global: cuda*; };\n",
    "simcuda/csrc/driver/driver.cpp": "driver\n",
    "simcuda/csrc/nvml/nvml.cpp": "nvml\n",
    "simcuda/csrc/cupti/cupti.cpp": "cupti\n",
    "simcuda/csrc/operators/launch.h": "// the simulated CUDA's\n",
    "simcuda/csrc/operators/front.cpp": '#include "launch.h"\nfront\n',
    "softdevice/csrc/operators/launch.h": "// the software device's\n",
    "softdevice/csrc/operators/operators.cpp": "operators\n",
    "softdevice/csrc/operators/pointwise.cpp": "pointwise\n",
    "softdevice/csrc/operators/recipes.cpp": '#include "tables.h"\nrecipes\n',
    "softdevice/csrc/operators/tables.h": "// shared\n",
    "softdevice/csrc/core/queue.cpp": "queue\n",
    "softdevice/csrc/core/stream.cpp": "not part of it\n",
}


class Place:
    """Sources, cache, compiler and environment of a build."""

    def __init__(self, root: Path) -> None:
        self.root = root / "harness"
        self.calls = root / "calls"
        self.compiler = root / "pretend"
        self.compiler.write_text(_COMPILER)
        self.compiler.chmod(0o755)
        for name, text in _SOURCES.items():
            self.write(name, text)
        tools = Toolchain((str(self.compiler),), "pretending 1.0", ("-O7",), ("-shared",))
        self.tools = Toolchains(13, tools, tools)
        self.environ = {**os.environ, "HARNESS_CACHE_DIR": str(root / "cache"), "CALLS": str(self.calls)}

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def build(self, major: int = 13) -> Path:
        tools = Toolchains(major, self.tools.runtime, self.tools.operators)
        return native.build(build.recipe(tools, self.root), lambda _: None, environ=self.environ)

    def compiled(self) -> list[str]:
        """What was compiled since the last question."""
        calls = [line.split() for line in self.calls.read_text().splitlines()]
        self.calls.write_text("")
        return sorted(word for call in calls for word in call if word.endswith(".cpp"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_libraries_have_the_names_of_cudas_own(place: Place) -> None:
    folder = place.build()
    contents = {file.name: file.read_text() for file in folder.iterdir()}
    assert contents == {
        "libcudart.so.13": "#include <driver_types.h>\n#include <simcuda.h>\nstream\nqueue\n"
        "libcudart.so.13 { global: cuda*; };\n",
        "libcuda.so.1": "driver\n",
        "libnvidia-ml.so.1": "nvml\n",
        "libcupti.so.13": "cupti\n",
        "libsimcuda_operators.so": 'operators\npointwise\n#include "tables.h"\nrecipes\n#include "launch.h"\nfront\n',
    }
    calls = [line for line in place.calls.read_text().splitlines() if "-soname," in line]
    links = {line.partition("-soname,")[2].split()[0]: line for line in calls}
    assert set(links) == set(contents) - {"libsimcuda_operators.so"}
    assert "-l:libcudart.so.13 -Wl,-rpath,$ORIGIN" in links["libcuda.so.1"]
    assert "-l:" not in links["libcudart.so.13"] + links["libnvidia-ml.so.1"]
    twelve = place.build(12)
    assert (twelve / "libcudart.so.12").read_text().endswith("libcudart.so.12 { global: cuda*; };\n")
    assert (twelve / "libcupti.so.12").exists()
    assert place.build() == folder


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("simcuda/csrc/include/simcuda.h", ["simcuda/csrc/runtime/stream.cpp"]),
        ("simcuda/csrc/operators/launch.h", ["simcuda/csrc/operators/front.cpp"]),
        ("softdevice/csrc/operators/launch.h", []),
        ("softdevice/csrc/operators/tables.h", ["softdevice/csrc/operators/recipes.cpp"]),
        ("softdevice/csrc/core/queue.cpp", ["softdevice/csrc/core/queue.cpp"]),
        ("softdevice/csrc/core/stream.cpp", []),
    ],
)
def test_a_change_compiles_what_it_concerns(place: Place, name: str, again: list[str]) -> None:
    before = place.build()
    place.compiled()
    place.write(name, (place.root / name).read_text() + "// more\n")
    assert (place.build() != before) == bool(again)
    assert place.compiled() == again


def test_another_version_script_links_again_and_compiles_nothing(place: Place) -> None:
    before = place.build()
    place.compiled()
    place.write("simcuda/csrc/runtime/exports.map", "libcudart.so.@MAJOR@ { global: *; };\n")
    assert place.build() != before
    assert place.compiled() == []


def _torch_is_built_for(monkeypatch: pytest.MonkeyPatch, cuda: Detected) -> None:
    monkeypatch.setattr(software, "cuda", lambda: cuda)


def _wheel(site: Path, folder: str, *headers: str) -> Path:
    (site / folder).mkdir(parents=True)
    for header in headers:
        (site / folder / header).write_text(f"// {header}\n")
    return site / folder


def test_headers_come_from_the_wheels(tmp_path: Path) -> None:
    shared = _wheel(tmp_path / "a", "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    assert toolchain.header_folders(13, ["", str(tmp_path / "none"), str(tmp_path / "a")]) == (shared,)
    runtime = _wheel(tmp_path / "b", "nvidia/cuda_runtime/include", "cuda_runtime_api.h")
    cupti = _wheel(tmp_path / "b", "nvidia/cuda_cupti/include", "cupti.h")
    assert toolchain.header_folders(12, [str(tmp_path / "b")]) == (runtime, cupti)


@pytest.mark.parametrize(
    ("major", "headers", "wheel"),
    [
        (13, [], "'cuda_runtime_api.h' of CUDA 13, and no package has it: install nvidia-cuda-runtime"),
        (13, ["cuda_runtime_api.h"], "'cupti.h' of CUDA 13, and no package has it: install nvidia-cuda-cupti"),
        (12, [], "'cuda_runtime_api.h' of CUDA 12, and no package has it: install nvidia-cuda-runtime-cu12"),
    ],
)
def test_missing_headers_are_named_with_their_wheel(tmp_path: Path, major: int, headers: list[str], wheel: str) -> None:
    _wheel(tmp_path, "nvidia/cu13/include", *headers)
    with pytest.raises(BuildError) as caught:
        toolchain.header_folders(major, [str(tmp_path)])
    assert str(caught.value) == f"the simulated CUDA needs the header {wheel}"


def test_other_headers_make_other_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _torch_is_built_for(monkeypatch, Detected((13, 0)))
    folder = _wheel(tmp_path, "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    # The CPU build of torch has all that the operators' toolchain looks for but the headers.
    before = toolchain.find(search=[str(tmp_path)])
    assert f"-isystem{folder}" in before.runtime.flags
    assert {"-ltorch_cuda", "-lc10_cuda"} < {*before.operators.link}
    assert before == toolchain.find(search=[str(tmp_path)])
    (folder / "cupti.h").write_text("// another release\n")
    after = toolchain.find(search=[str(tmp_path)])
    assert after.runtime.identity() != before.runtime.identity()


@pytest.mark.parametrize(
    ("cuda", "environ", "said"),
    [
        (
            Detected(None, "torch is not installed"),
            {},
            "the simulated CUDA needs a CUDA build of torch, and torch is not installed",
        ),
        (Detected((13, 0)), {"PATH": "/nowhere"}, "the simulated CUDA needs a C++ compiler: $CXX is not set"),
        (Detected((13, 0)), {"CXX": "false"}, "'false' --version ended with status 1"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Detected, environ: dict[str, str], said: str
) -> None:
    _torch_is_built_for(monkeypatch, cuda)
    _wheel(tmp_path, "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    with pytest.raises(BuildError) as caught:
        toolchain.find({"PATH": os.environ["PATH"], **environ}, search=[str(tmp_path)])
    assert said in str(caught.value)


def test_a_cache_that_cannot_be_preloaded_from_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda _: place.tools)
    with pytest.raises(
        BuildError, match=r"cannot load the simulated CUDA from '/a b/simcuda', since LD_PRELOAD allows"
    ):
        build.build(environ={"HARNESS_CACHE_DIR": "/a b"})
