"""Capabilities: of this machine, of plain inventories, and of software installed for the test."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.text import format_bytes
from harness.devices import software
from harness.devices.capabilities import (
    VOCABULARY,
    Capabilities,
    ValueKind,
    detect_capabilities,
    format_capability,
)
from harness.devices.device import CPU, Detected, Device, Inventory, Value, Version
from harness.sim.softdevice import registration as soft
from tests.devices.compiled import compile_library

pytestmark = pytest.mark.acceptance

GPU = Device(uuid="GPU-a", kind="cuda", name="A", index=0, memory=80 * 2**30, compute_capability=(9, 0), ecc=True)
OTHER = Device(uuid="GPU-b", kind="cuda", name="A", index=1, memory=80 * 2**30, compute_capability=(9, 0))
SLICE = Device(uuid="MIG-c", kind="cuda", name="A MIG", index=2, memory=10 * 2**30, mig_parent="GPU-c")
SLICE_2 = Device(uuid="MIG-d", kind="cuda", name="A MIG", index=2, memory=10 * 2**30, mig_parent="GPU-c")
OLD = Device(uuid="GPU-f", kind="cuda", name="Old", index=4, memory=16 * 2**30, compute_capability=(7, 5))
AMPERE = Device(uuid="GPU-g", kind="cuda", name="Ampere", index=5, memory=24 * 2**30, compute_capability=(8, 6))
ADA = Device(uuid="GPU-h", kind="cuda", name="Ada", index=6, memory=24 * 2**30, compute_capability=(8, 9))
LOST = Device(uuid="GPU-e", kind="cuda", name="unknown GPU", index=3, fault="name: GPU is lost")


def machine(*devices: Device) -> Inventory:
    return Inventory(devices=devices, driver="570.86.15", cuda_driver="12.8")


BARE = Inventory(devices=(CPU,), nvml_error="NVML does not answer: NVML Shared Library Not Found")
SOFT, SOFT_1 = (
    Device(uuid=f"SOFT-{index}", kind="soft", name=soft.BACKEND.label, index=index, memory=2**30) for index in (0, 1)
)
AT_ONCE = Device(uuid="SOFT-0", kind="soft", name=soft.BACKEND.label, index=0, observed={"asynchronous": False})
SOFTWARE = Inventory(devices=(SOFT, SOFT_1), nvml_error="not asked")
_NO_GPU = "the device is a software device"


@pytest.mark.parametrize(
    ("inventory", "device", "name", "value", "text"),
    [
        (BARE, CPU, "device", "cpu", "cpu"),
        (BARE, CPU, "accelerator", False, "False (the device is the cpu)"),
        (SOFTWARE, SOFT, "device", "soft", "soft"),
        (SOFTWARE, SOFT, "accelerator", True, "True"),
        (BARE, CPU, "accelerator_graphs", False, "False (the device is the cpu)"),
        (BARE, CPU, "asynchronous", False, "False (work on the cpu is done when its call returns)"),
        (machine(GPU), GPU, "asynchronous", True, "True"),
        (SOFTWARE, SOFT, "asynchronous", True, "True"),
        (
            Inventory(devices=(AT_ONCE,)),
            AT_ONCE,
            "asynchronous",
            False,
            "False (the work of soft is done when its launch returns)",
        ),
        (BARE, CPU, "sparse", True, "True"),
        (SOFTWARE, SOFT, "sparse", False, "False (declared by its registration)"),
        (
            machine(GPU),
            replace(GPU, observed={"sparse": False}),
            "sparse",
            False,
            "False (torch has no sparse tensors on cuda)",
        ),
        (BARE, CPU, "process_groups", True, "True"),
        (SOFTWARE, SOFT, "process_groups", False, "False (declared by its registration)"),
        (machine(GPU), replace(GPU, observed={"process_groups": True}), "process_groups", True, "True"),
        (
            machine(GPU),
            replace(GPU, observed={"process_groups": False}),
            "process_groups",
            False,
            "False (torch.distributed has no backend for cuda)",
        ),
        (SOFTWARE, SOFT, "model", "soft (software device)", "soft (software device)"),
        (SOFTWARE, SOFT_1, "devices", 2, "2 (soft)"),
        (SOFTWARE, SOFT, "device_count", 2, "2 (soft)"),
        (SOFTWARE, SOFT, "memory", 2**30, "1.0GiB"),
        (SOFTWARE, SOFT, "free_memory", 2**30, "1.0GiB (of a software device; each process has its own)"),
        (SOFTWARE, SOFT, "compute_capability", None, f"absent ({_NO_GPU})"),
        (SOFTWARE, SOFT, "ecc", None, f"absent ({_NO_GPU})"),
        (SOFTWARE, SOFT, "peer_links", None, f"absent ({_NO_GPU})"),
        *(
            (SOFTWARE, SOFT, name, False, f"False ({_NO_GPU})")
            for name in ("peer_access", "nvlink", "fabric", "bf16", "tf32", "fp8", "cuda_graphs", "cuda_malloc_async")
        ),
        (SOFTWARE, SOFT, "expandable_segments", False, f"False ({_NO_GPU})"),
        (SOFTWARE, SOFT, "mig", False, "False"),
        (SOFTWARE, SOFT, "nvml", False, "False (not asked)"),
        (SOFTWARE, SOFT, "driver", None, "absent (not asked)"),
        (BARE, CPU, "devices", 1, "1 (cpu)"),
        (BARE, CPU, "ranks", 8, "8 (processes on the cpu)"),
        (SOFTWARE, SOFT_1, "ranks", 2, "2 (soft)"),
        (BARE, CPU, "device_count", 1, "1 (cpu)"),
        (BARE, CPU, "compute_capability", None, "absent (the device is the cpu)"),
        (BARE, CPU, "ecc", None, "absent (the device is the cpu)"),
        (BARE, CPU, "cuda_graphs", False, "False (the device is the cpu)"),
        *(
            (BARE, CPU, name, False, "False (the device is the cpu)")
            for name in (
                "peer_access",
                "nvlink",
                "fabric",
                "bf16",
                "tf32",
                "fp8",
                "cuda_malloc_async",
                "expandable_segments",
            )
        ),
        (BARE, CPU, "mig", False, "False"),
        (BARE, CPU, "nvml", False, "False (NVML does not answer: NVML Shared Library Not Found)"),
        (BARE, CPU, "driver", None, "absent (NVML does not answer: NVML Shared Library Not Found)"),
        (BARE, CPU, "cuda_driver", None, "absent (NVML does not answer: NVML Shared Library Not Found)"),
        (machine(GPU), GPU, "device", "cuda", "cuda"),
        (machine(GPU), GPU, "model", "A", "A"),
        (machine(GPU), GPU, "compute_capability", (9, 0), "9.0"),
        (machine(GPU), GPU, "bf16", True, "True"),
        (machine(GPU), GPU, "tf32", True, "True"),
        (machine(GPU), GPU, "fp8", True, "True"),
        (machine(ADA), ADA, "fp8", True, "True"),
        (machine(AMPERE), AMPERE, "bf16", True, "True"),
        (machine(AMPERE), AMPERE, "tf32", True, "True"),
        (machine(AMPERE), AMPERE, "fp8", False, "False (compute capability 8.6, needs 8.9)"),
        (machine(OLD), OLD, "bf16", False, "False (compute capability 7.5, needs 8.0)"),
        (machine(OLD), OLD, "tf32", False, "False (compute capability 7.5, needs 8.0)"),
        (
            machine(SLICE),
            SLICE,
            "bf16",
            None,
            "absent (nvml does not report the compute capability)",
        ),
        (machine(GPU), GPU, "peer_access", False, "False (there is only one gpu)"),
        (machine(SLICE, SLICE_2), SLICE, "peer_access", False, "False (a process sees only one mig instance)"),
        (machine(GPU, SLICE), GPU, "peer_access", False, "False (there is only one gpu)"),
        (machine(SLICE), SLICE, "nvlink", False, "False (the device is a mig instance, and these do not use nvlink)"),
        (machine(GPU), GPU, "memory", 80 * 2**30, "80.0GiB"),
        (machine(GPU), GPU, "cuda_graphs", True, "True"),
        (machine(GPU), GPU, "nvml", True, "True"),
        (machine(GPU), GPU, "driver", (570, 86, 15), "570.86.15"),
        (machine(GPU), GPU, "cuda_driver", (12, 8), "12.8"),
        (machine(GPU), GPU, "ecc", True, "True"),
        (machine(GPU, OTHER), OTHER, "ecc", None, "absent (the device has no ecc mode)"),
        (machine(GPU, OTHER, LOST), GPU, "devices", 2, "2 (cuda)"),
        (machine(GPU, SLICE), SLICE, "mig", True, "True"),
        (machine(GPU, OTHER, SLICE), GPU, "devices", 2, "2 (cuda)"),
        (machine(GPU, OTHER, SLICE), GPU, "device_count", 3, "3 (cuda)"),
        (machine(SLICE, SLICE_2), SLICE, "devices", 1, "1 (cuda; a process sees only one mig instance)"),
        (machine(SLICE, SLICE_2), SLICE, "device_count", 2, "2 (cuda)"),
        (machine(SLICE), SLICE, "compute_capability", None, "absent (nvml does not report it)"),
        (machine(LOST, CPU), CPU, "device_count", 1, "1 (cpu)"),
    ],
)
def test_what_a_device_offers(inventory: Inventory, device: Device, name: str, value: Value | None, text: str) -> None:
    capabilities = detect_capabilities(inventory, device)
    assert capabilities[name] == value
    assert capabilities.describe(name) == text


def test_every_entry_says_what_it_is_how_it_is_found_and_without_what() -> None:
    for name, entry in VOCABULARY.items():
        assert entry.text, name
        assert entry.source, name
        assert entry.without, name
        assert "\n" not in entry.text + entry.source + entry.without, name
        assert (entry.unit != "") is (entry.kind in (ValueKind.COUNT, ValueKind.BYTES)), name


def test_the_vocabulary_is_the_one_that_files_and_cases_use() -> None:
    """Changing a name here breaks each case that requires it."""
    names = """
        device accelerator accelerator_graphs asynchronous sparse process_groups inductor model devices ranks
        caching_allocator pinned_memory autocast wide_seeds device_properties refuses_forks
        device_count compute_capability memory free_memory peer_access peer_links nvlink fabric mig ecc
        bf16 tf32 fp8 cuda_graphs cuda_malloc_async expandable_segments nvml driver cuda_driver cuda rocm cudnn cublas
        nccl silicon torch torchvision triton cuda_toolkit cpp_compiler cpp_extensions cpu_bf16 python numpy platform
    """
    assert sorted(VOCABULARY) == sorted(names.split())


def test_every_value_has_the_type_the_vocabulary_says() -> None:
    types: dict[ValueKind, type] = {
        ValueKind.TEXT: str,
        ValueKind.BOOL: bool,
        ValueKind.COUNT: int,
        ValueKind.BYTES: int,
        ValueKind.VERSION: tuple,
    }
    for inventory, device in [(BARE, CPU), (machine(GPU), GPU), (machine(SLICE), SLICE), (SOFTWARE, SOFT)]:
        capabilities = detect_capabilities(inventory, device)
        assert list(capabilities) == list(VOCABULARY)
        for name, value in capabilities.items():
            if value is None:
                assert capabilities.finding(name).detail, f"{name} is absent without a reason"
            else:
                assert type(value) is types[VOCABULARY[name].kind], name


def test_each_capability_is_detected_once_at_its_first_use() -> None:
    asked = []

    def probe() -> Detected:
        asked.append(1)
        return Detected((1, 2))

    capabilities = Capabilities({"triton": probe, "numpy": probe})
    assert asked == []
    assert (capabilities["triton"], capabilities["triton"]) == ((1, 2), (1, 2))
    assert len(asked) == 1


def test_a_name_outside_the_vocabulary() -> None:
    with pytest.raises(KeyError):
        detect_capabilities(BARE, CPU)["gpu"]


def test_free_memory_is_at_most_the_memory() -> None:
    capabilities = detect_capabilities(BARE, CPU)
    free, memory = capabilities["free_memory"], capabilities["memory"]
    assert isinstance(free, int)
    assert isinstance(memory, int)
    assert 0 < free <= memory


# Prints capabilities and the number of cache files, in a process with a fake torch for CUDA.
_ASK_THE_DRIVER = """
import sys
from pathlib import Path
from harness.devices.capabilities import detect_capabilities
from harness.devices.device import Device, Inventory
gpu = Device(uuid="GPU-a", kind="cuda", name="A", index=0)
cache = Path(sys.argv[1])
capabilities = detect_capabilities(Inventory((gpu,), driver="570.86.15"), gpu, cache)
print(cache.exists())
for name in ("cuda_malloc_async", "expandable_segments", "cudnn", "nccl"):
    print(name, capabilities.describe(name))
print(len(list(cache.glob("*.json"))), "torch" in sys.modules)
"""


def test_a_probe_detects_what_metadata_and_nvml_do_not_report(tmp_path: Path) -> None:
    """One answer per question is cached, even a failure: no machine has this GPU, and this torch cannot be imported."""
    _fake_torch(tmp_path, "2.13.0+cu990", "cuda = '99.0'\n", {"nvidia-nccl-cu99": "2.28.9"})
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", _ASK_THE_DRIVER, str(tmp_path / "cache")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    nothing_yet, pools, segments, cudnn, nccl, kept = done.stdout.splitlines()
    assert nothing_yet == "False"
    assert pools.startswith("cuda_malloc_async absent (")
    assert segments.removeprefix("expandable_segments") == pools.removeprefix("cuda_malloc_async")
    assert cudnn == "cudnn absent (torch was imported)"
    assert nccl == "nccl 2.28.9"
    assert kept == "2 False"


def test_a_torch_without_cuda_does_not_ask_the_driver() -> None:
    built = software.torch_cuda_version()
    if built.value is not None:
        pytest.skip("torch is built for cuda here")
    for name in ("cuda_malloc_async", "expandable_segments"):
        assert detect_capabilities(machine(GPU), GPU).finding(name) == Detected(False, built.detail)


def test_graphs_of_an_accelerator_are_those_that_torch_has() -> None:
    """torch itself is asked if it can answer: a build for CUDA without a GPU cannot."""
    found = detect_capabilities(machine(GPU), GPU).finding("accelerator_graphs")
    built = software.torch_cuda_version()
    if built.value is None:
        assert found == Detected(False, built.detail)
    elif software.torch_version().value == (2, 13, 0):
        assert found == Detected(False, "torch has no torch.accelerator.Graph for cuda")
    else:
        assert isinstance(found.value, bool)


def test_what_a_library_names(tmp_path: Path) -> None:
    source = tmp_path / "one.c"
    source.write_text("int wanted_elsewhere(void); int defined_here(void) { return wanted_elsewhere(); }")
    library = tmp_path / "libone.so"
    compile_library(source, library)
    assert software.has_symbol_with(library, b"defined_here")
    assert software.has_symbol_with(library, b"wanted_else")
    assert not software.has_symbol_with(library, b"nowhere")
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        software.has_symbol_with(source, b"wanted")
    library.write_bytes(library.read_bytes()[:200])
    with pytest.raises(ValueError, match="it has no table of sections"):
        software.has_symbol_with(library, b"wanted")


def test_neither_discovery_nor_any_capability_imports_torch() -> None:
    script = """
import sys
from harness.devices.inventory import discover_devices
from harness.devices.capabilities import detect_capabilities
inventory = discover_devices()
print(len(dict(detect_capabilities(inventory, inventory.usable[0]))))
print(sorted({"torch", "triton", "numpy", "pydantic", "rich"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == [str(len(VOCABULARY)), "[]"]


def test_the_versions_are_those_of_the_imported_modules() -> None:
    script = """
import numpy, sys, torch
from harness.devices import software
assert software.torch_version().value == software.parse_release(torch.__version__), torch.__version__
assert software.distribution_version("numpy").value == software.parse_release(numpy.__version__), numpy.__version__
cuda = torch.version.cuda
assert software.torch_cuda_version().value == (None if cuda is None else software.parse_release(cuda)), cuda
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.13.0", (2, 13, 0)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.14.0.dev20260101+cu130", (2, 14, 0)),
        ("2.13.0a0+git1234", (2, 13, 0)),
        ("v3", (3,)),
        (" 570.86.15 ", (570, 86, 15)),
        ("3.3.x", (3, 3)),
        ("", None),
        ("None", None),
        ("+cpu", None),
        ("٣.٤", None),
    ],
)
def test_release(text: str, version: Version | None) -> None:
    assert software.parse_release(text) == version


@pytest.mark.parametrize(
    ("source", "constants"),
    [
        (b"cuda: Optional[str] = '12.8'\nhip = None\n", {"cuda": "12.8", "hip": None}),
        (b"cuda = '12.8'\ndebug = False\nn = 3\n", {"cuda": "12.8"}),
        (b"import os\ncuda = os.system('false')\na = b = 'c'\n", {}),
        (b"", {}),
    ],
)
def test_plain_constants(source: bytes, constants: dict[str, str | None]) -> None:
    assert software.parse_constants(source) == constants


@pytest.mark.parametrize("source", [b"cuda = ", b"cuda = '\xff'", b"\0"])
def test_invalid_python_is_an_error(source: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        software.parse_constants(source)


def _install(site: Path, name: str, version: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _fake_torch(site: Path, version: str, version_py: str, packages: dict[str, str]) -> None:
    """Install a fake torch and `packages` into `site`. The fake torch cannot be imported."""
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (site / "torch" / "version.py").write_text(version_py)
    for name, installed in {"torch": version, **packages}.items():
        _install(site, name, installed)


def _ask(site: Path, question: str, *arguments: str) -> str:
    """The result of a function of `harness.devices.software` in a process with only the packages of `site`."""
    root = Path(__file__).parents[2]
    script = f"import sys; sys.path[:0] = {[str(root), str(site)]!r}\nfrom harness.devices import software\n"
    script += f"found = software.{question}(*{arguments!r})\nprint(found.value, '|', found.detail)"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("torch_version", "version_py", "packages", "cuda", "cudnn"),
    [
        (
            "2.13.0+cu130",
            "cuda: Optional[str] = '13.0'\n",
            {"nvidia-cudnn-cu13": "9.13.0.50"},
            "(13, 0) |",
            "(9, 13, 0, 50) |",
        ),
        (
            "2.11.0",
            "cuda = '12.8'\n",
            {"nvidia-cudnn-cu13": "9.13.0.50"},
            "(12, 8) |",
            "None | no distribution named nvidia-cudnn-cu12 is installed; a version bundled with torch is unknown "
            "until it is loaded",
        ),
        (
            "2.12.0+cpu",
            "__version__ = '2.12.0+cpu'\ncuda: Optional[str] = None\n",
            {},
            "None | torch 2.12.0+cpu is built without cuda",
            "None | torch 2.12.0+cpu is built without cuda",
        ),
        (
            "2.12.0",
            "cuda = 'new'\n",
            {},
            "None | torch is built for an invalid version of cuda: 'new'",
            "None | torch is built for an invalid version of cuda: 'new'",
        ),
    ],
    ids=["wheels", "bundled", "cpu", "nonsense"],
)
def test_cuda_and_cudnn_of_other_builds(
    tmp_path: Path, torch_version: str, version_py: str, packages: dict[str, str], cuda: str, cudnn: str
) -> None:
    _fake_torch(tmp_path, torch_version, version_py, packages)
    assert _ask(tmp_path, "torch_cuda_version") == cuda
    assert _ask(tmp_path, "wheel_version", "nvidia-cudnn") == cudnn


@pytest.mark.parametrize(
    ("cuda", "packages", "cublas", "nccl"),
    [
        ("12.8", {"nvidia-cublas-cu12": "12.8.4.1", "nvidia-nccl-cu12": "2.27.5"}, "(12, 8, 4, 1) |", "(2, 27, 5) |"),
        ("13.0", {"nvidia-cublas": "13.0.2.14", "nvidia-nccl-cu13": "2.28.9"}, "(13, 0, 2, 14) |", "(2, 28, 9) |"),
        ("12.8", {"nvidia-cublas": "13.0.2.14", "nvidia-nccl": "12.8"}, "None | no distribution", "None | no dist"),
        ("13.0", {"nvidia-cublas-cu12": "12.8.4.1"}, "None | no distribution named nvidia-cublas-cu13", "None | no"),
    ],
    ids=["cuda 12", "cuda 13", "of another cuda", "none"],
)
def test_cublas_and_nccl_of_other_builds(
    tmp_path: Path, cuda: str, packages: dict[str, str], cublas: str, nccl: str
) -> None:
    _fake_torch(tmp_path, "2.13.0", f"cuda = {cuda!r}\n", packages)
    assert _ask(tmp_path, "wheel_version", "nvidia-cublas").startswith(cublas)
    assert _ask(tmp_path, "wheel_version", "nvidia-nccl").startswith(nccl)


def test_a_torch_for_rocm(tmp_path: Path) -> None:
    _fake_torch(tmp_path, "2.13.0+rocm7.1", "cuda = None\nhip: Optional[str] = '7.1.25424-4179531dcd'\n", {})
    assert _ask(tmp_path, "torch_rocm_version") == "(7, 1, 25424) |"
    assert _ask(tmp_path, "torch_cuda_version") == "None | torch None is built without cuda"


def test_software_that_is_not_there(tmp_path: Path) -> None:
    assert _ask(tmp_path, "torch_version") == "None | no distribution named torch is installed"
    assert _ask(tmp_path, "torch_cuda_version") == "None | torch is not installed"
    assert _ask(tmp_path, "torch_rocm_version") == "None | torch is not installed"
    assert (
        _ask(tmp_path, "distribution_version", "torchvision") == "None | no distribution named torchvision is installed"
    )
    assert _ask(tmp_path, "triton_version") == "None | no distribution named triton or pytorch-triton is installed"


def test_a_torch_without_readable_version(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert "version.py cannot be read" in _ask(tmp_path, "torch_cuda_version")
    (tmp_path / "torch" / "version.py").write_text("cuda = (")
    assert "version.py cannot be read" in _ask(tmp_path, "torch_cuda_version")


def test_triton_of_a_nightly(tmp_path: Path) -> None:
    _install(tmp_path, "pytorch-triton", "3.6.0+git1234")
    assert _ask(tmp_path, "triton_version") == "(3, 6, 0) |"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022", (12, 2, 0)),
        ("g++ (GCC) 11.4.1 20230605 (Red Hat 11.4.1-2)", (11, 4, 1)),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-2) 13.3.0", (13, 3, 0)),
        ("x86_64-linux-gnu-g++-13.2 (Ubuntu 13.2.0-23ubuntu4) 13.2.0", (13, 2, 0)),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu", (18, 1, 3)),
        ("clang version 14.0", (14, 0)),
        ("Usage: compiler", None),
        ("", None),
    ],
)
def test_compiler_version(text: str, version: Version | None) -> None:
    assert software.parse_compiler_version(text) == version


@pytest.mark.parametrize(
    ("script", "value", "detail"),
    [
        ("echo 'fake version 7.1.0'", (7, 1, 0), ""),
        ("echo hello", None, "{name} --version printed no version"),
        ("exit 3", None, "{name} --version ended with status 3"),
        (None, None, "{name} does not start (No such file or directory)"),
    ],
)
def test_cxx_is_used_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, value: Version | None, detail: str
) -> None:
    compiler = tmp_path / "fake compiler"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{compiler}' -std=c++20")
    found = software.cpp_compiler_version()
    assert found == Detected(value, detail.format(name=f"'{compiler}' -std=c++20"))


def test_an_invalid_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ 'unclosed")
    assert (
        software.cpp_compiler_version().detail
        == """$CXX is not a valid command: "g++ 'unclosed" (No closing quotation)"""
    )


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = "$CXX is not set, and $PATH has none of c++, g++, clang++"
    assert software.cpp_compiler_version() == Detected(None, expected)


@pytest.mark.parametrize(
    ("found", "where"),
    [
        ({"CUDA_HOME", "CUDA_PATH", "nvcc", "usual"}, "home"),
        ({"CUDA_PATH", "nvcc", "usual"}, "path"),
        ({"nvcc", "usual"}, "toolkit"),
        ({"usual"}, "usual"),
        (set(), ""),
    ],
)
def test_cuda_toolkit_is_where_torch_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: set[str], where: str
) -> None:
    for name, folder in (("CUDA_HOME", "home"), ("CUDA_PATH", "path")):
        monkeypatch.setenv(name, str(tmp_path / folder) if name in found else "")
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    if "nvcc" in found:
        nvcc.write_text("")
        nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent))
    monkeypatch.setattr(software, "_CUDA_HOME", tmp_path / "usual")
    if "usual" in found:
        (tmp_path / "usual").mkdir()
    detected = software.find_cuda_toolkit()
    missing = f"$CUDA_HOME is not set, $PATH has no nvcc, and there is no {tmp_path / 'usual'}"
    assert detected == (Detected(True, str(tmp_path / where)) if found else Detected(False, missing))


def test_cpp_extensions_need_a_compiler_ninja_and_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Detected((12, 2))
    monkeypatch.setattr(software, "cpp_compiler_version", lambda: compiler)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"include": str(tmp_path)}[name])
    monkeypatch.setenv("PATH", str(tmp_path))
    ninja, header = tmp_path / "ninja", tmp_path / "Python.h"

    assert "no ninja" in software.can_build_cpp_extensions().detail
    ninja.touch(0o755)
    assert f"no {header}" in software.can_build_cpp_extensions().detail
    assert software.can_build_cpp_extensions().value is False
    header.touch()
    assert software.can_build_cpp_extensions() == Detected(True)
    compiler = Detected(None, "no compiler")
    assert software.can_build_cpp_extensions() == Detected(False, "no compiler")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (8 * 2**30, "8.0GiB"),
        (12 * 2**30 - 1, "11.9GiB"),
        (3 * 2**40 // 2, "1.5TiB"),
    ],
)
def test_size_is_rounded_down(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_written() -> None:
    assert [
        format_capability("torch", (2, 13, 0)),
        format_capability("memory", 2**30),
        format_capability("devices", 2),
        format_capability("mig", False),
    ] == [
        "2.13.0",
        "1.0GiB",
        "2",
        "False",
    ]
