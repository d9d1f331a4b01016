"""The recipe of the simulated CUDA's libraries, the headers that they need, and properties of the libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from harness.devices.device import Detected
from harness.sim.native import build as native
from harness.sim.native.toolchain import BuildError, Toolchain
from harness.sim.simcuda import build, toolchain
from harness.sim.simcuda.toolchain import SimcudaToolchains
from tests.sim.simcuda.cuda_builds import needs_cuda_build, pretend_build

_TOOLS = Toolchain(("c++",), "pretending 1.0", ("pretending 1.0",))
_COPIED = ("CMakeLists.txt", "simcuda", "softdevice")


@pytest.mark.parametrize("major", [12, 13])
def test_the_libraries_have_the_names_of_cudas_own(major: int) -> None:
    assert build.simcuda_recipe(SimcudaToolchains(major, _TOOLS, _TOOLS)).files == (
        f"libcudart.so.{major}",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        f"libcupti.so.{major}",
        "libnccl.so.2",
        f"libnvrtc.so.{major}",
        "libsimcuda_operators.so",
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources in another folder."""
    root = tmp_path_factory.mktemp("sources")
    for name in _COPIED:
        if (build.ROOT / name).is_dir():
            shutil.copytree(build.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(build.ROOT / name, root)
    return root


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("simcuda/csrc/include/simcuda.h", True),
        ("simcuda/csrc/runtime/exports.map", True),
        ("simcuda/csrc/operators/CMakeLists.txt", True),
        ("simcuda/csrc/runtime/tests/graph_test.cpp", False),
        ("simcuda/build.py", False),
        ("softdevice/csrc/core/queue.cpp", True),
        ("softdevice/csrc/operators/recipes.cpp", True),
        ("softdevice/csrc/aten/module.cpp", False),
    ],
)
def test_a_change_of_a_source_makes_other_libraries(copy: Path, name: str, other: bool) -> None:
    def key() -> str:
        return native.cache_key(build.simcuda_recipe(SimcudaToolchains(13, _TOOLS, _TOOLS), copy))

    assert key() == native.cache_key(build.simcuda_recipe(SimcudaToolchains(13, _TOOLS, _TOOLS)))
    before, text = key(), (copy / name).read_bytes()
    (copy / name).write_bytes(text + b"\n")
    assert (key() != before) == other
    (copy / name).write_bytes(text)


@needs_cuda_build
@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_what_the_dynamic_linker_sees() -> None:
    built = build.build_simcuda()
    for library in (*built.runtime, built.operators):
        command = ["readelf", "--dynamic", str(library)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = {kind: re.findall(rf"\({kind}\).*\[(.*)\]", shown) for kind in ("SONAME", "NEEDED", "RUNPATH", "RPATH")}
        assert names["SONAME"] == ([] if library == built.operators else [library.name])
        beside = ["$ORIGIN"] if built.runtime[0].name in names["NEEDED"] else []
        assert names["RUNPATH"] + names["RPATH"] == beside
        assert sysconfig.get_path("purelib").encode() not in library.read_bytes()


def _wheel(site: Path, folder: str, *headers: str) -> Path:
    (site / folder).mkdir(parents=True)
    for header in headers:
        (site / folder / header).write_text(f"// {header}\n")
    return site / folder


def test_headers_come_from_the_wheels(tmp_path: Path) -> None:
    shared = _wheel(tmp_path / "a", "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    nccl = _wheel(tmp_path / "a", "nvidia/nccl/include", "nccl.h")
    assert toolchain.header_folders(13, ["", str(tmp_path / "none"), str(tmp_path / "a")]) == (shared, nccl)
    runtime = _wheel(tmp_path / "b", "nvidia/cuda_runtime/include", "cuda_runtime_api.h")
    cupti = _wheel(tmp_path / "b", "nvidia/cuda_cupti/include", "cupti.h")
    nccl = _wheel(tmp_path / "b", "nvidia/nccl/include", "nccl.h")
    assert toolchain.header_folders(12, [str(tmp_path / "b")]) == (runtime, cupti, nccl)


@pytest.mark.parametrize(
    ("major", "headers", "wheel"),
    [
        (13, [], "'cuda_runtime_api.h' of CUDA 13, and no package has it: install nvidia-cuda-runtime"),
        (13, ["cuda_runtime_api.h"], "'cupti.h' of CUDA 13, and no package has it: install nvidia-cuda-cupti"),
        (
            13,
            ["cuda_runtime_api.h", "cupti.h"],
            "'nccl.h' of CUDA 13, and no package has it: install nvidia-nccl-cu13",
        ),
        (12, [], "'cuda_runtime_api.h' of CUDA 12, and no package has it: install nvidia-cuda-runtime-cu12"),
    ],
)
def test_missing_headers_are_named_with_their_wheel(tmp_path: Path, major: int, headers: list[str], wheel: str) -> None:
    _wheel(tmp_path, "nvidia/cu13/include", *headers)
    with pytest.raises(BuildError) as caught:
        toolchain.header_folders(major, [str(tmp_path)])
    assert str(caught.value) == f"the simulated CUDA needs the header {wheel}"


def test_other_headers_make_other_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_build(monkeypatch, Detected((13, 0)))
    folder = _wheel(tmp_path, "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    nccl = _wheel(tmp_path, "nvidia/nccl/include", "nccl.h")
    # The CPU build of torch has all that the operators' toolchain needs except the headers.
    before = toolchain.find_simcuda_toolchains(search=[str(tmp_path)])
    assert before.runtime.folders == {"CUDA_INCLUDE_0": folder, "CUDA_INCLUDE_1": nccl}
    assert before.operators.folders.keys() == {"CUDA_INCLUDE_0", "CUDA_INCLUDE_1", "TORCH", "PYTHON_INCLUDE"}
    assert before == toolchain.find_simcuda_toolchains(search=[str(tmp_path)])
    elsewhere = tmp_path / "another environment"
    shutil.copytree(folder, elsewhere / "nvidia/cu13/include")
    shutil.copytree(nccl, elsewhere / "nvidia/nccl/include")
    assert toolchain.find_simcuda_toolchains(search=[str(elsewhere)]).runtime.key() == before.runtime.key()
    (folder / "cupti.h").write_text("// another release\n")
    after = toolchain.find_simcuda_toolchains(search=[str(tmp_path)])
    assert after.runtime.key() != before.runtime.key()


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
    pretend_build(monkeypatch, cuda)
    _wheel(tmp_path, "nvidia/cu13/include", "cuda_runtime_api.h", "cupti.h")
    _wheel(tmp_path, "nvidia/nccl/include", "nccl.h")
    with pytest.raises(BuildError) as caught:
        toolchain.find_simcuda_toolchains({"PATH": os.environ["PATH"], **environ}, search=[str(tmp_path)])
    assert said in str(caught.value)


def test_a_cache_that_cannot_be_preloaded_from_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_simcuda_toolchains", lambda _: SimcudaToolchains(13, _TOOLS, _TOOLS))
    with pytest.raises(
        BuildError, match=r"cannot load the simulated CUDA from '/a b/simcuda', since LD_PRELOAD allows"
    ):
        build.build_simcuda(environ={"HARNESS_CACHE_DIR": "/a b"})
