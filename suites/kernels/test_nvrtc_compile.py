"""Compilation of kernel source with NVRTC, which needs a build for CUDA and the library, but no GPU."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import _torch_private as private

pytestmark = [
    pytest.mark.requires(cuda=True, cuda_toolkit=True, platform="linux-*"),
    pytest.mark.covers("test_cuda::TestCompileKernel::test_compile_kernel"),
]


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Restore the stack limit.

    NVRTC (13.0) raises it, and does not restore it after an error that it calls catastrophic.
    """
    before = resource.getrlimit(resource.RLIMIT_STACK)
    yield
    resource.setrlimit(resource.RLIMIT_STACK, before)


PLAIN = """
extern "C" __global__ void doubled(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = 2 * x[i];
}
"""

TEMPLATE = """
template <typename T, int N>
__global__ void scaled(T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = N * x[i];
}
"""


def test_nvrtc_compile_makes_an_elf_binary_with_the_kernel() -> None:
    """The result is an ELF binary for the device, and contains the kernel under its name."""
    code, name = private.binary(PLAIN, "doubled")

    assert name == "doubled"
    assert code.startswith(b"\x7fELF")
    assert b"doubled" in code


def test_nvrtc_compile_of_the_same_text_gives_the_same_binary() -> None:
    """The result depends only on source, name and options."""
    assert private.binary(PLAIN, "doubled") == private.binary(PLAIN, "doubled")


@pytest.mark.covers("test_cuda::TestCompileKernel::test_compile_kernel_template")
def test_nvrtc_compile_distinguishes_template_instances() -> None:
    """A template instance is found by its C++ expression, and each has its own name in the code."""
    names = []
    for instance in ("scaled<float, 2>", "scaled<float, 3>", "scaled<int, 2>"):
        code, name = private.binary(TEMPLATE, instance)
        assert name.encode() in code
        names.append(name)

    assert len(set(names)) == 3
    assert all("scaled" in name and name != "scaled" for name in names)


BROKEN = {
    "unknown_name": ('extern "C" __global__ void broken(float* x) { nowhere = 1; }', r"nowhere"),
    "unfinished": ('extern "C" __global__ void broken(float* x) {', r"broken\.cu"),
    "absent_header": ('#include "no_such_file.h"\nextern "C" __global__ void broken() {}', r"no_such_file\.h"),
    "its_own_error": ('#error "of the program\'s own"\nextern "C" __global__ void broken() {}', r"program's own"),
}


@pytest.mark.parametrize(("source", "reported"), BROKEN.values(), ids=BROKEN.keys())
def test_nvrtc_compile_reports_errors_in_the_text(source: str, reported: str) -> None:
    """Source that does not compile raises with the compiler's message, and the compiler works afterwards."""
    with pytest.raises(RuntimeError, match=reported):
        private.binary(source, "broken")

    assert private.binary(PLAIN, "doubled")[1] == "doubled"


@pytest.mark.parametrize(("name", "capability"), [("tripled", "90"), ("doubled", "12345"), ("doubled", "ninety")])
def test_nvrtc_compile_refuses_an_unknown_kernel_or_capability(name: str, capability: str) -> None:
    """An unknown kernel name or compute capability raises with the compiler's message."""
    reported = "tripled" if name == "tripled" else "architecture"
    with pytest.raises(RuntimeError, match=rf"(?s)compilation failed.*{reported}"):
        private.binary(PLAIN, name, capability=capability)


@pytest.mark.covers("test_cuda::TestCompileKernel::test_compile_kernel_advanced")
def test_nvrtc_compile_searches_cuda_include_dirs_in_order(tmp_path: Path) -> None:
    """Include directories are searched in order; as a control, compilation fails without them."""
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "mine.h").write_text(f"#define MINE marked_{number}\n", encoding="utf-8")
    source = (
        '#include "mine.h"\nextern "C" __device__ int MINE = 7;\nextern "C" __global__ void f(int* x) { *x = MINE; }'
    )

    found = [private.binary(source, "f", include=[str(tmp_path / first)])[0] for first in ("1", "2")]
    both = private.binary(source, "f", include=[str(tmp_path / "2"), str(tmp_path / "1")])[0]

    assert [b"marked_1" in code for code in found] == [True, False]
    assert b"marked_2" in both
    with pytest.raises(RuntimeError, match=r"mine\.h"):
        private.binary(source, "f")


@pytest.mark.covers("test_cuda::TestCompileKernel::test_compile_kernel_advanced")
def test_nvrtc_compile_passes_nvcc_options() -> None:
    """Options are passed to the compiler: a macro definition takes effect, and an unknown option raises."""
    source = 'extern "C" __device__ int NAME = 7;\nextern "C" __global__ void f(int* x) { *x = NAME; }'

    assert b"chosen" in private.binary(source, "f", options=["-DNAME=chosen"])[0]
    with pytest.raises(RuntimeError, match=r"--no-such-option"):
        private.binary(source, "f", options=["--no-such-option"])
