"""Device code for the host: its translation, what PTX says about it, and the toolkit's `nvcc`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.sim.simcuda import build
from harness.sim.simcuda.device_code import module, ptx, toolkit, translate
from harness.sim.simcuda.device_code.module import DeviceCodeError
from harness.sim.simcuda.device_code.translate import TranslationError
from tests.sim.simcuda.cuda_builds import needs_cuda_build


def translated(source: str, *, launches: bool = False) -> str:
    return re.sub(r"\s+", " ", translate.translate(source, [], launches=launches)).strip()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("void f() { simcuda_shared float s[4][8]; }", "void f() { thread_local float s[4][8]; }"),
        ("void f() { static simcuda_shared int x; }", "void f() { static thread_local int x; }"),
        (
            "void f() { extern simcuda_shared __attribute__((aligned(16))) T s[][4]; }",
            "void f() { T (&s)[][4] = reinterpret_cast<T (&)[][4]>(simcuda_dynamic_shared); }",
        ),
        (
            "namespace a { extern simcuda_shared int s[]; }",
            'namespace a { extern __thread int s[] __asm__("simcuda_dynamic_shared"); }',
        ),
        ('auto x = "simcuda_shared asm(1)";', 'auto x = "simcuda_shared asm(1)";'),
        ('auto x = R"a(asm(")")a";', 'auto x = R"a(asm(")")a";'),
        ("__noinline__ int f();", "__attribute__((noinline)) int f();"),
        ("__attribute__((__noinline__)) int f();", "__attribute__((__noinline__)) int f();"),
        ("int x = 1 << 2; a<b<c<d>>> e;", "int x = 1 << 2; a<b<c<d>>> e;"),
    ],
)
def test_what_no_header_can_define_is_translated(source: str, wanted: str) -> None:
    assert translated(source) == wanted


@pytest.mark.parametrize(
    ("source", "name", "rest"),
    [
        (
            "k<<<1, 2>>>(x, y);",
            "k",
            "Configuration(1, 2), [=](auto&... simcuda_arguments) { k(simcuda_arguments...); }, x, y);",
        ),
        ("k<<<dim3(1, 2), b, 0, s>>>();", "k", "Configuration(dim3(1, 2), b, 0, s), [=]"),
        (
            "if (a) n::k<T, A<B<int>>><<<g(h<1>(2)), b>>>(f(1, 2));",
            "n::k<T, A<B<int>>>",
            "Configuration(g(h<1>(2)), b)",
        ),
        ("return ::n::k<3><<<1, 1>>>(p);", "::n::k<3>", "Configuration(1, 1)"),
        ("t.template k<1><<<1, 1>>>(p);", "k<1>", "Configuration(1, 1)"),
    ],
)
def test_a_launch_is_a_call(source: str, name: str, rest: str) -> None:
    found = translated(source, launches=True)
    assert f'simcuda_device::launch("{name}", simcuda_device::' in found
    assert rest in found
    assert "<<<" not in found


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("void f() { extern simcuda_shared int x; }", "arrays only"),
        ("void f() { k<<<1, 1>>>(); }", "dynamic parallelism"),
        ("void f() { asm volatile(", "a bracket '(' is not closed"),
    ],
)
def test_what_cannot_be_translated(source: str, words: str) -> None:
    with pytest.raises(TranslationError, match=re.escape(words)):
        translate.translate(source, [])


@pytest.mark.parametrize(("source", "words"), [("k<<<1, 1;", "no `>>>`"), ("k<<<1, 1>>>;", "no arguments follow")])
def test_a_launch_that_is_not_complete(source: str, words: str) -> None:
    with pytest.raises(TranslationError, match=words):
        translate.translate(source, [], launches=True)


def test_inline_assembly() -> None:
    known = 'asm("{ cvt.rn.f16.f32 %0, %1;}\\n" : "=h"(bits(x)) : "f"(y));'
    assert translated(known) == "simcuda_ptx::store((bits(x)) , simcuda_ptx::half_of((y)));"
    refused: list[str] = []
    source = 'void f() { asm volatile("bfind.u32 %0, %1;" : "=r"(a) : "r"(b)); }'
    assert 'refuse("inline PTX is not supported: bfind.u32 %0, %1;")' in translate.translate(source, refused)
    assert refused == ["bfind.u32 %0, %1;"]


def test_assembly_of_the_hosts_headers_stays() -> None:
    source = '# 1 "/usr/include/a.h" 1 3 4\nvoid f() { asm("cpuid"); }\n# 2 "b.cu" 2\nint g() __asm__("h");'
    assert translate.translate(source, []) == source


_PTX = """
.version 9.0
.global .align 4 .b8 g[12];
.const .align 4 .u32 c = 4;
.global .align 1 .b8 $str[6] = {104};
.extern .shared .align 16 .b8 dyn[];
.shared .align 4 .b8 everywhere[64];
.func helper(.param .b64 helper_param_0) { mma.sync.aligned.m8n8k4 %r1; }
.visible .entry first(
	.param .u64 first_param_0,
	.param .align 8 .b8 first_param_1[16]
)
.maxntid 32, 4, 1
{
	.shared .align 4 .b8 own[128];
	ld.param.u64 %rd1, [first_param_0];
	ld.param.u64 %rd2, [first_param_1+8];
	{ cvta.to.global.u64 %rd3, %rd2; }
	ld.global.f32 %f1, [%rd1];
	// begin inline asm
	bfind.u32 %r1, %r2;
	// end inline asm
	st.global.f32 [%rd3+4], %f1;
	ret;
}
.visible .entry second()
{
	mov.u32 %r1, everywhere;
	call.uni helper, (param0);
}
"""


def test_what_ptx_says_of_kernels() -> None:
    first, second = ptx.find_kernels(_PTX)
    assert (first.name, first.threads, first.shared, first.unsupported) == ("first", 128, 128, "")
    assert first.written == (0, 2)
    assert [text.strip() for text in first.assembly] == ["bfind.u32 %r1, %r2;"]
    assert (second.threads, second.shared, second.unsupported) == (1024, 64, "matrix operations of tensor cores")
    assert ptx.find_variables(_PTX) == ["g", "c"]


@pytest.mark.parametrize("content", [b"source 5\nabc", b"source x\nabc\n", b"source 3\nabc", b"no end"])
def test_a_damaged_source_is_refused(content: bytes) -> None:
    with pytest.raises(DeviceCodeError, match="it is damaged"):
        module.parse_source(content)


def test_a_source_is_read() -> None:
    content = b"source 4\na\nb\xff\nheader-name 1\nh\nheader 2\n\n\n\nexpression 4\nk<1>\nlowered 2\n_Z\noption 2\n-I\n"
    source = module.parse_source(content)
    assert (source.text, source.headers, source.expressions) == ("a\nb\udcff", {"h": "\n\n"}, {"_Z": "k<1>"})
    assert source.options == ["-I"]


@pytest.mark.parametrize(
    ("environ", "named"),
    [({}, True), ({"CUDA_HOME": "/opt/cuda"}, False), ({"CUDA_PATH": "/opt/cuda"}, False), ({"CUDA_HOME": ""}, True)],
)
def test_a_toolkit_that_the_user_names_stays(environ: Mapping[str, str], named: bool) -> None:
    variables = toolkit.toolkit_environment(Path("/kit"), 13, environ)
    assert variables["SIMCUDA_TOOLKIT"] == "/kit"
    assert ("CUDA_HOME" in variables) == named


_PROGRAM = r"""
#include <cstdio>
#include <vector>

__constant__ int offset;
__device__ int total;

struct Scale { int factor; };

template <int N>
__global__ void scale(const int* from, int* to, Scale by) {
  __shared__ int kept[N];
  extern __shared__ int more[];
  kept[threadIdx.x] = from[blockIdx.x * N + threadIdx.x];
  more[threadIdx.x] = offset;
  __syncthreads();
  to[blockIdx.x * N + threadIdx.x] = kept[N - 1 - threadIdx.x] * by.factor + more[0];
  atomicAdd(&total, 1);
}

__global__ void stop(int* x) { if (x != nullptr) asm volatile("bar.sync 1;"); }

int main() {
  constexpr int n = 128, block = 32;
  std::vector<int> host(n);
  for (int i = 0; i < n; ++i) host[i] = i;
  int *from, *to, five = 5, count = 0;
  cudaMalloc(&from, n * sizeof(int));
  cudaMalloc(&to, n * sizeof(int));
  cudaMemcpy(from, host.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpyToSymbol(offset, &five, sizeof five);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  scale<block><<<n / block, block, block * sizeof(int), stream>>>(from, to, Scale{3});
  cudaStreamSynchronize(stream);
  cudaMemcpy(host.data(), to, n * sizeof(int), cudaMemcpyDeviceToHost);
  cudaMemcpyFromSymbol(&count, total, sizeof count);
  std::printf("%d %d %d %d\n", host[0], host[31], host[127], count);
  scale<block><<<1, 2048>>>(from, to, Scale{3});
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  int fresh = 0;
  Scale one{1};
  void* arguments[] = {&from, &to, &one};
  std::printf("%d\n", cudaLaunchKernel(scale<block>, dim3(1), dim3(block), arguments, 128, stream));
  cudaStreamSynchronize(stream);
  cudaMemcpy(&fresh, to, sizeof fresh, cudaMemcpyDeviceToHost);
  std::printf("%d\n", fresh);
  stop<<<1, 1>>>(to);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
"""


_GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdio>

namespace cg = cooperative_groups;

__global__ void groups(int* out) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int rank = block.thread_rank(), sum = rank, *own = out + 4 * rank;
  for (int step = tile.size() / 2; step > 0; step /= 2) sum += tile.shfl_down(sum, step);
  own[0] = tile.shfl(sum, 0);
  own[1] = cg::reduce(tile, rank, cg::greater<int>());
  if (rank % 3 == 0) {
    auto some = cg::coalesced_threads();
    own[2] = some.thread_rank() * 100 + some.size();
  }
  cg::sync(block);
  own[3] = tile.meta_group_rank() * 10 + tile.ballot(rank % 8 == 3);
}

__global__ void across() { cg::this_grid().sync(); }

int main() {
  int* out;
  cudaMallocManaged(&out, 40 * 4 * sizeof(int));
  groups<<<1, 40>>>(out);
  cudaDeviceSynchronize();
  for (int rank : {9, 39}) {
    std::printf("%d %d %d %d\n", out[4 * rank], out[4 * rank + 1], out[4 * rank + 2], out[4 * rank + 3]);
  }
  across<<<2, 1>>>();
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
"""


def _run_program(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile a program by the toolkit's `nvcc`, and run it on simulated devices."""
    built = build.build_simcuda()
    environ = {**os.environ, **build.simcuda_environment(built, os.environ)}
    (folder / "program.cu").write_text(source, encoding="utf-8")
    options = ("-O2", "-arch=sm_90", "-Xcompiler", "-Wall", "-o", "program")
    made = subprocess.run(
        [built.toolkit / "bin" / "nvcc", *options, "program.cu"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return subprocess.run([folder / "program"], env=environ, capture_output=True, text=True, check=False)


@needs_cuda_build
@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("source", "lines", "words"),
    [
        pytest.param(
            _PROGRAM,
            ["98 5 293 128", "cudaErrorInvalidConfiguration", "0", "36", "cudaErrorNotSupported"],
            "kernel stop: inline PTX is not supported: bar.sync 1;",
            id="memory, variables, launches",
        ),
        pytest.param(
            _GROUPS,
            ["92 15 311 18", "284 39 203 48", "cudaErrorNotSupported"],
            "kernel across: cooperative groups across the grid are not supported",
            id="cooperative groups",
        ),
    ],
)
def test_nvcc_makes_a_program_that_runs_on_simulated_devices(
    source: str, lines: list[str], words: str, tmp_path: Path
) -> None:
    done = _run_program(source, tmp_path)
    assert done.stdout.splitlines() == lines, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "device 0 failed" in line]
    assert words in said


@needs_cuda_build
@pytest.mark.acceptance
def test_errors_of_nvcc(tmp_path: Path) -> None:
    built = build.build_simcuda()
    (tmp_path / "wrong.cu").write_text("__global__ void k(int* x) { *x = missing; }\n", encoding="utf-8")
    for arguments, words in (
        (["-c", "wrong.cu"], ": error: 'missing' was not declared"),
        (["-dlink", "a.o"], "the simulated CUDA has no device code of several files (-dlink)"),
        ([], "no input files"),
    ):
        done = subprocess.run(
            [built.toolkit / "bin" / "nvcc", *arguments],
            cwd=tmp_path,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.startswith("nvcc: ")
    shown = subprocess.check_output([built.toolkit / "bin" / "nvcc", "--version"], text=True)
    assert re.search(r"release \d+\.\d+, V\d+\.\d+", shown)
