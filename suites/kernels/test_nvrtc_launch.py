"""Launches of kernels compiled from source: arguments, shape, streams, shared memory, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from . import _torch_private as private
from .operators import ADDED, added, shape

pytestmark = pytest.mark.requires(device="cuda", not_={"rocm": True}, cuda_toolkit=True, platform="linux-*")

ROW = "test_cuda::TestCompileKernel::"


@pytest.fixture(autouse=True)
def context(device: torch.device) -> None:
    """Open the context of the device, into which the driver loads a module."""
    torch.cuda.synchronize(device)


@pytest.mark.covers(f"{ROW}test_compile_kernel")
@pytest.mark.parametrize("n", [1, 255, 256, 1_000_003])
def test_compile_kernel_launch_writes_exactly_its_elements(device: torch.device, n: int) -> None:
    """A launch runs the kernel over the whole grid with exact results, and writes only the requested elements."""
    kernel = private.compiled(ADDED, "added")
    a, b = (torch.arange(n, dtype=torch.float32, device=device) * factor for factor in (1, 2))
    room = torch.full((n + 64,), -1.0, device=device)

    kernel(**shape(n), args=[a, b, room, n])

    assert torch.equal(room[:n], a + b)
    assert (room[n:] == -1).all()


@pytest.mark.covers(f"{ROW}test_compile_kernel")
def test_compile_kernel_launch_runs_on_its_stream(device: torch.device) -> None:
    """The kernel runs on the current stream, or on the given one, after earlier work there."""
    kernel = private.compiled('extern "C" __global__ void step(int* x) { *x = *x * 3 + 1; }', "step")
    calibrate(device)

    for given in (False, True):
        x = torch.zeros(1, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            sleep_on(side)
            x.fill_(2)
            if not given:
                kernel(args=[x])
        if given:
            kernel(args=[x], stream=side)
        side.synchronize()
        assert x.item() == 7


SQUARED = """
extern "C" __global__ void multiplied(const float* a, const float* b, float* c, int n) {
  __shared__ float left[16][16], right[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < (n + 15) / 16; ++tile) {
    int x = tile * 16 + threadIdx.x, y = tile * 16 + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < n && x < n ? a[row * n + x] : 0;
    right[threadIdx.y][threadIdx.x] = y < n && column < n ? b[y * n + column] : 0;
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}
"""


DIMENSIONS = """
extern "C" __global__ void dimensions(int* x) {
  x[0] = gridDim.x, x[1] = gridDim.y, x[2] = gridDim.z, x[3] = blockDim.x, x[4] = blockDim.y, x[5] = blockDim.z;
}
"""


@pytest.mark.covers(f"{ROW}test_compile_kernel_advanced")
@pytest.mark.parametrize("n", [16, 37, 200])
def test_compile_kernel_two_dimensions_with_shared_memory(device: torch.device, n: int) -> None:
    """Grid and block dimensions are passed in order, and the threads of a block share memory.

    A product of small whole-number matrices is exact.
    """
    reported = torch.zeros(6, dtype=torch.int32, device=device)
    private.compiled(DIMENSIONS, "dimensions")(grid=(2, 3, 5), block=(7, 4, 8), args=[reported])
    assert reported.tolist() == [2, 3, 5, 7, 4, 8]
    kernel = private.compiled(SQUARED, "multiplied")
    a, b = (torch.arange(n * n, device=device).remainder(factor).float().reshape(n, n) for factor in (7, 5))
    c = torch.empty(n, n, device=device)
    blocks = -(-n // 16)

    kernel(grid=(blocks, blocks, 1), block=(16, 16, 1), args=[a, b, c, n])

    assert torch.equal(c, (a.double() @ b.double()).float())


DYNAMIC = """
extern "C" __global__ void through(const int* from, int* to, int n) {
  extern __shared__ int held[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) held[i] = from[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = held[n - 1 - i];
}
"""


@pytest.mark.requires(compute_capability=">=8.0")
@pytest.mark.covers(f"{ROW}test_compile_kernel_large_shared_memory")
def test_compile_kernel_set_shared_memory_config_is_needed_above_48_kib(device: torch.device) -> None:
    """More than 48 KiB of shared memory must be configured; otherwise the launch raises and names the function.

    After the configuration, all of it is usable. A size above the device's limit raises in the configuration.
    """
    kernel = private.compiled(DYNAMIC, "through")
    count = 64 * 1024 // 4
    source = torch.arange(count, dtype=torch.int32, device=device)
    result = torch.zeros_like(source)
    launch: dict[str, Any] = {"block": (256, 1, 1), "args": [source, result, count], "shared_mem": 64 * 1024}

    for configured in (None, 50 * 1024):
        if configured is not None:
            kernel.set_shared_memory_config(configured)
        with pytest.raises(RuntimeError, match="set_shared_memory_config"):
            kernel(**launch)
    kernel.set_shared_memory_config(64 * 1024)
    kernel(**launch)

    assert torch.equal(result, source.flip(0))
    with pytest.raises(RuntimeError, match=r"(?i)exceeds"):
        kernel.set_shared_memory_config(1 << 30)


@pytest.mark.covers(f"{ROW}test_compile_kernel_double_precision")
def test_compile_kernel_passes_numbers_exactly(device: torch.device) -> None:
    """A Python float is passed as a double and an int as an int, without loss of precision."""
    source = """
extern "C" __global__ void keep(double* x, int* n, double d, int i, double e) {
  x[0] = d, n[0] = i, x[1] = e;
}
"""
    kernel = private.compiled(source, "keep")
    x, n = torch.zeros(2, dtype=torch.float64, device=device), torch.zeros(1, dtype=torch.int32, device=device)

    for number, whole in ((1 / 3, -7), (1e-300, 2**31 - 1), (1 + 2**-52, -(2**31))):
        kernel(args=[x, n, number, whole, -number])
        assert x.tolist() == [number, -number]
        assert n.item() == whole


@pytest.mark.covers(f"{ROW}test_compile_kernel_template")
def test_compile_kernel_template_instances_are_separate_kernels(device: torch.device) -> None:
    """Template instances for different types each use their own arithmetic."""
    source = (
        "template <typename T> __global__ void halved(T* x, int n) { for (int i = 0; i < n; ++i) x[i] = x[i] / 2; }"
    )
    for name, dtype in (("float", torch.float32), ("int", torch.int32), ("double", torch.float64)):
        x = torch.tensor([3, 5, -7], dtype=dtype, device=device)
        expected = (x / 2).trunc().to(dtype) if name == "int" else x / 2
        private.compiled(source, f"halved<{name}>")(args=[x, 3])
        assert torch.equal(x, expected)


@pytest.mark.covers(f"{ROW}test_compile_kernel_cuda_headers")
def test_compile_kernel_finds_headers_of_cuda(device: torch.device) -> None:
    """A kernel can include CUDA's headers without an include path if they are installed for extensions."""
    from torch.utils.cpp_extension import include_paths

    if not any(Path(each, "cuda_fp16.h").exists() for each in include_paths("cuda")):
        pytest.skip("CUDA's headers are not installed where extensions look for them")
    source = """
#include <cuda_fp16.h>
extern "C" __global__ void rounded(const float* x, __half* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = __float2half(x[i]);
}
"""
    x = torch.tensor([1.0, 1 / 3, 65504.0, -2.5], device=device)
    y = torch.zeros(4, dtype=torch.float16, device=device)

    private.compiled(source, "rounded")(block=(32, 1, 1), args=[x, y, 4])

    assert torch.equal(y, x.half())


@pytest.mark.covers(f"{ROW}test_compile_kernel_dlpack")
def test_compile_kernel_takes_a_tensor_from_dlpack(device: torch.device) -> None:
    """A tensor from DLPack can be an argument, and the kernel's writes are visible in the original tensor."""
    a = torch.arange(8, dtype=torch.float32, device=device)
    lent = torch.from_dlpack(a)

    private.compiled(ADDED, "added")(block=(32, 1, 1), args=[lent, lent, lent, 8])

    assert torch.equal(a, 2 * torch.arange(8, dtype=torch.float32, device=device))


@pytest.mark.covers(f"{ROW}test_compile_kernel")
def test_compile_kernel_takes_pinned_memory(device: torch.device) -> None:
    """A pinned CPU tensor can be an argument, which the device reads and writes in place."""
    assert device.type == "cuda"
    a = torch.arange(8, dtype=torch.float32).pin_memory()
    b = torch.zeros(8).pin_memory()

    private.compiled(ADDED, "added")(block=(32, 1, 1), args=[a, a, b, 8])
    torch.cuda.synchronize(device)

    assert torch.equal(b, 2 * torch.arange(8, dtype=torch.float32))


@pytest.mark.covers(f"{ROW}test_compile_kernel")
@pytest.mark.parametrize(
    ("bad", "error"), [("a text", TypeError), (None, TypeError), ([1], TypeError), ("cpu", ValueError)]
)
def test_compile_kernel_refuses_bad_arguments(device: torch.device, bad: object, error: type[Exception]) -> None:
    """An argument that is neither a tensor on the device nor a number raises before the launch."""
    kernel = private.compiled(ADDED, "added")
    c = torch.zeros(8, device=device)

    with pytest.raises(error):
        kernel(block=(32, 1, 1), args=[c, torch.ones(8) if bad == "cpu" else bad, c, 8])

    assert (c == 0).all()


@pytest.mark.covers(f"{ROW}test_compile_kernel_as_custom_op", f"{ROW}test_compile_kernel_custom_op_validation")
def test_compile_kernel_as_a_custom_operator_passes_opcheck(device: torch.device) -> None:
    """A kernel behind a custom operator passes `opcheck`, validates its arguments, and matches eager results."""
    a, b = torch.rand(1000, device=device), torch.rand(1000, device=device)
    assert torch.equal(added(a, b), a + b)
    torch.library.opcheck(added, (a, b), test_utils=("test_schema", "test_faketensor"))
    for bad in ((a,), (a, 1), (a, "b"), (a, b, b)):
        with pytest.raises((RuntimeError, TypeError)):
            added(*bad)
    with pytest.raises((NotImplementedError, RuntimeError)):
        added(a.cpu(), b.cpu())
