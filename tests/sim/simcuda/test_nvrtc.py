"""CUDA C++ that NVRTC compiles at run time, on simulated devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.devices import software
from harness.sim.simcuda import build
from tests.sim.simcuda import checks
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

pytestmark = [pytest.mark.acceptance, needs_cuda_build]

_CHECKS = Path(__file__).with_name("nvrtc_checks.py")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Return the variables of a process on simulated devices."""
    return build.simcuda_environment(build.build_simcuda(), os.environ)


@pytest.fixture(scope="module")
def outcomes(environment: dict[str, str]) -> dict[str, str]:
    """Return the result of each check: "ok", or a traceback."""
    return checks.outcomes(_CHECKS, environment, timeout=900)


@pytest.mark.parametrize("name", checks.names(_CHECKS))
def test_kernels_of_nvrtc(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "ok", outcomes[name]


#: Bodies of a kernel, the error of its device, and what stderr says.
_FAILURES = {
    "assertion": ("assert(threadIdx.x < 3);", 710, "module.cu:1: void fails(int*): block: [0,0,0], thread: [3,0,0]"),
    "trap": ("__trap();", 719, "__trap() was called"),
    "null": ("*(volatile int*)nullptr = 1;", 700, "used an address that has no memory"),
    "far": ("x[1ll << 40] = 1;", 700, "used an address that has no memory"),
    "stack": ("volatile int much[100000]; much[threadIdx.x] = 1; *x = much[0];", 700, "an address that has no memory"),
    "division": ("*x = 7 / *x;", 719, "an integer was divided by zero"),
    "barrier": ("if (threadIdx.x == 0) __syncthreads(); else __syncwarp();", 702, "wait for each other for ever"),
    "mask": ("if (threadIdx.x == 5) __syncwarp(1);", 719, "lane 5 has called a warp function with mask 1"),
}

_FAILURE = """
import ctypes, sys, torch
x = torch.zeros(64, dtype=torch.int32, device="cuda")
kernel = torch.cuda._compile_kernel("extern \\"C\\" __global__ void fails(int* x) { %s }", "fails")
kernel((1, 1, 1), (64, 1, 1), (x,))
runtime = ctypes.CDLL(None)
print(runtime.cudaDeviceSynchronize(), runtime.cudaDeviceSynchronize())
"""


@pytest.mark.parametrize("name", _FAILURES)
def test_a_kernel_that_fails_its_device(name: str, environment: dict[str, str]) -> None:
    body, error, words = _FAILURES[name]
    done = run_python(_FAILURE % body, environment)
    assert done.stdout.split() == [str(error)] * 2, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Simulated CUDA: device 0 failed")]
    assert "kernel fails: " in said
    assert words.replace("module.cu", "fails.cu") in said


_CORE = """
import torch
x = torch.zeros(64, device="cuda")
torch.cuda.synchronize()
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device()
device.set_current()
stream = device.create_stream()
code = '''template <typename T> __global__ void fill(T* x, T from, size_t n) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = from + i;
}'''
program = Program(code, code_type="c++", options=ProgramOptions(std="c++17", arch="sm_90"))
kernel = program.compile("cubin", name_expressions=("fill<int>",)).get_kernel("fill<int>")
y = torch.zeros(64, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
import ctypes
launch(stream, LaunchConfig(grid=2, block=32), kernel, y.data_ptr(), ctypes.c_int(3), ctypes.c_size_t(60))
stream.sync()
assert y.tolist() == [3 + i if i < 60 else 0 for i in range(64)], y
print("done")
"""


@pytest.mark.skipif(software.distribution_version("cuda-core").value is None, reason="cuda-core is not installed")
def test_kernels_of_cuda_core(environment: dict[str, str]) -> None:
    done = run_python(_CORE, environment)
    assert done.stdout == "done\n", done.stderr


_VARIABLE = """
import torch
x = torch.zeros(1, device="cuda")
source = '__device__ float kept; extern "C" __global__ void add(float* x) { *x += ++kept; }'
kernel = torch.cuda._compile_kernel(source, "add")
for _ in range(3):
    kernel((1, 1, 1), (1, 1, 1), (x,))
print(x.item())
"""


def test_a_cache_that_cannot_be_written_to(environment: dict[str, str], tmp_path: Path) -> None:
    """The driver then makes modules in a temporary folder, and leaves nothing there."""
    toolkit, temporary = tmp_path / "toolkit", tmp_path / "temporary"
    toolkit.mkdir()
    temporary.mkdir()
    (toolkit / "bin").symlink_to(Path(environment["SIMCUDA_TOOLKIT"]) / "bin")
    own = {**environment, "SIMCUDA_TOOLKIT": str(toolkit), "TMPDIR": str(temporary)}
    done = run_python(_VARIABLE, own)
    assert done.stdout == "6.0\n", done.stderr
    assert list(temporary.iterdir()) == []
    assert [path.name for path in toolkit.iterdir()] == ["bin"]
