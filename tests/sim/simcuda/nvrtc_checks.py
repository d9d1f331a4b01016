"""A program of checks for simulated devices (see `checks`): each check compiles kernels by NVRTC, and launches them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

cuda: Any = torch.cuda  # partly untyped
driver, nvrtc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}")
torch.zeros(1, device="cuda")  # opens the context

NOT_SUPPORTED, INVALID_VALUE, OUT_OF_RESOURCES, NOT_FOUND, TOO_LARGE = 801, 1, 701, 500, 720


def compile_kernel(source: str, name: str, **options: Any) -> Any:
    return cuda._compile_kernel(source, name, **options)


def expect(wanted: int, name: str, *arguments: Any) -> None:
    found = getattr(driver, name)(*arguments)
    assert found == wanted, f"{name} returned {found}, not {wanted}"


class Program:
    """A program of NVRTC, compiled for a virtual or a real architecture."""

    def __init__(
        self, source: str, *expressions: str, options: tuple[str, ...] = (), headers: dict[str, str] | None = None
    ) -> None:
        self.handle, given = ctypes.c_void_p(), headers or {}
        texts, names = ((ctypes.c_char_p * len(given))(*map(str.encode, part)) for part in (given.values(), given))
        arguments = (source.encode(), b"program.cu", len(given), texts, names)
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(self.handle), *arguments) == 0
        for expression in expressions:
            assert nvrtc.nvrtcAddNameExpression(self.handle, expression.encode()) == 0
        words = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        self.result = nvrtc.nvrtcCompileProgram(self.handle, len(options), words)
        self.log = self._text("ProgramLog").decode()

    def _text(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(nvrtc, f"nvrtcGet{what}Size")(self.handle, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert getattr(nvrtc, f"nvrtcGet{what}")(self.handle, text) == 0
        return text.raw

    def image(self, what: str = "PTX") -> bytes:
        assert self.result == 0, self.log
        return self._text(what)

    def lowered(self, expression: str) -> bytes:
        name = ctypes.c_char_p()
        assert nvrtc.nvrtcGetLoweredName(self.handle, expression.encode(), ctypes.byref(name)) == 0
        assert name.value is not None
        return name.value


def load(image: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    expect(0, "cuModuleLoadData", ctypes.byref(module), image)
    return module


def function(module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    expect(0, "cuModuleGetFunction", ctypes.byref(found), module, name)
    return found


def launch(
    kernel: ctypes.c_void_p,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    *arguments: Any,
    shared: int = 0,
    wanted: int = 0,
) -> None:
    pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
    stream = ctypes.c_void_p(cuda.current_stream().cuda_stream)
    sizes = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block))]
    expect(wanted, "cuLaunchKernel", kernel, *map(ctypes.c_uint, sizes), shared, stream, pointers, None)


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[], str]]:
    """Yield a function that returns what has been written to standard error, by C++ too."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)

        def read() -> str:
            file.seek(0)
            return file.read().decode()

        try:
            yield read
        finally:
            os.dup2(before, 2)
            os.close(before)


def check_sizes_that_are_no_multiple_of_a_block() -> None:
    source = """
    extern "C" __global__ void scale(const float* x, float* out, int n, double factor) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = x[i] * static_cast<float>(factor);
    }"""
    x = torch.randn(1000, device="cuda")
    out = torch.full((1024,), 7.0, device="cuda")
    compile_kernel(source, "scale")((4, 1, 1), (256, 1, 1), (x, out, 1000, 2.5))
    torch.testing.assert_close(out[:1000], x * 2.5)
    assert out[1000:].eq(7).all()


def check_grids_and_blocks_of_three_dimensions() -> None:
    source = """
    extern "C" __global__ void place(int* out) {
      int x = blockIdx.x * blockDim.x + threadIdx.x;
      int y = blockIdx.y * blockDim.y + threadIdx.y;
      int z = blockIdx.z * blockDim.z + threadIdx.z;
      int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
      out[(z * height + y) * width + x] = x + 100 * y + 10000 * z;
    }"""
    out = torch.zeros(4, 6, 10, dtype=torch.int32, device="cuda")
    compile_kernel(source, "place")((5, 3, 2), (2, 2, 2), (out,))
    z, y, x = torch.meshgrid(*map(torch.arange, (4, 6, 10)), indexing="ij")
    assert out.cpu().equal((x + 100 * y + 10000 * z).int())


REDUCTION = """
template <typename T, int SIZE>
__global__ void total(const T* x, T* out, int n) {
  __shared__ T part[SIZE];
  T sum = 0;
  for (int i = blockIdx.x * SIZE + threadIdx.x; i < n; i += SIZE * gridDim.x) sum += x[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = SIZE / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, part[0]);
}"""


def check_barriers_in_a_loop_and_templates() -> None:
    for dtype, name in ((torch.float32, "float"), (torch.int32, "int"), (torch.float64, "double")):
        x = torch.arange(5000, device="cuda").to(dtype)
        out = torch.zeros(1, device="cuda", dtype=dtype)
        compile_kernel(REDUCTION, f"total<{name}, 128>")((8, 1, 1), (128, 1, 1), (x, out, 5000))
        assert out.item() == 5000 * 4999 // 2


def check_dynamic_shared_memory() -> None:
    source = """
    extern "C" __global__ void reverse(float* x) {
      extern __shared__ __align__(16) unsigned char bytes[];
      float* kept = reinterpret_cast<float*>(bytes);
      kept[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
      __syncthreads();
      x[blockIdx.x * blockDim.x + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
    }
    namespace other { extern __shared__ int whole[]; }
    extern "C" __global__ void count(int* out) {
      other::whole[threadIdx.x] = threadIdx.x;
      __syncthreads();
      if (threadIdx.x == 0) for (int i = 0; i < blockDim.x; ++i) *out += other::whole[i];
    }"""
    x = torch.arange(96.0, device="cuda")
    compile_kernel(source, "reverse")((3, 1, 1), (32, 1, 1), (x,), shared_mem=128)
    assert x.view(3, 32).flip(1).flatten().tolist() == list(range(96))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    compile_kernel(source, "count")((1, 1, 1), (64, 1, 1), (out,), shared_mem=256)
    assert out.item() == 64 * 63 // 2


def check_functions_of_a_warp() -> None:
    source = """
    extern "C" __global__ void warps(int* out) {
      const unsigned all = 0xffffffff;
      int lane = threadIdx.x % 32, *own = out + threadIdx.x * 12;
      int sum = lane;
      for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(all, sum, step);
      own[0] = __shfl_sync(all, sum, 0);
      own[1] = __shfl_xor_sync(all, lane, 3);
      own[2] = __shfl_up_sync(all, lane, 4, 8);
      own[3] = __ballot_sync(all, lane % 2);
      own[4] = __any_sync(all, lane == 7) + 2 * __all_sync(all, lane < 31);
      own[5] = __match_any_sync(all, lane / 8);
      own[6] = __reduce_max_sync(all, lane - 40);
      own[7] = __reduce_add_sync(all, 2u);
      own[8] = static_cast<int>(__shfl_sync(all, 0.5 + lane, 9));
      if (lane < 5) {
        own[9] = __ballot_sync(0x1f, lane != 2);
      } else {
        own[9] = __ballot_sync(~0x1fu, lane > 20);
      }
      __syncwarp();
      if (lane % 3 == 0) own[10] = __activemask();
      own[11] = __popc(__activemask());
    }"""
    out = torch.zeros(64, 12, dtype=torch.int32, device="cuda")
    compile_kernel(source, "warps")((1, 1, 1), (64, 1, 1), (out,))
    found = out.cpu()
    assert found[:32].equal(found[32:])
    lanes = torch.arange(32, dtype=torch.int32)

    def signed(bits: int) -> int:
        return bits - (1 << 32) if bits >> 31 else bits

    assert found[:32, 0].eq(31 * 16).all()
    assert found[:32, 1].equal(lanes ^ 3)
    assert found[:32, 2].equal(torch.where(lanes % 8 >= 4, lanes - 4, lanes))
    assert found[:32, 3].eq(signed(0xAAAAAAAA)).all()
    assert found[:32, 4].eq(1).all()
    assert found[:32, 5].tolist() == [signed(0xFF << (lane // 8 * 8)) for lane in range(32)]
    assert found[:32, 6].eq(-9).all()
    assert found[:32, 7].eq(64).all()
    assert found[:32, 8].eq(9).all()
    assert found[:5, 9].eq(0b11011).all()
    assert found[5:32, 9].eq(signed(0xFFE00000)).all()
    assert found[0:32:3, 10].eq(sum(1 << lane for lane in range(0, 32, 3))).all()
    assert found[1, 10] == 0
    assert found[:32, 11].eq(32).all()


def check_barriers_that_count() -> None:
    source = """
    extern "C" __global__ void votes(int* out) {
      if (threadIdx.x >= 90) return;  // threads that have ended do not count
      int count = __syncthreads_count(threadIdx.x % 2);
      int all = __syncthreads_and(threadIdx.x < 90), any = __syncthreads_or(threadIdx.x == 100);
      if (threadIdx.x == 89) { out[0] = count; out[1] = all; out[2] = any; }
    }"""
    out = torch.full((3,), -1, dtype=torch.int32, device="cuda")
    compile_kernel(source, "votes")((1, 1, 1), (128, 1, 1), (out,))
    assert out.tolist() == [45, 1, 0]


def check_atomic_functions() -> None:
    source = """
    extern "C" __global__ void atomics(int* i, float* f, double* d, unsigned long long* u) {
      atomicAdd(i, 1); atomicMax(i + 1, (int)threadIdx.x); atomicMin(i + 2, -(int)threadIdx.x);
      atomicOr(i + 3, 1 << threadIdx.x % 8); atomicCAS(i + 4, 0, (int)threadIdx.x + 1);
      atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicAdd(u, 1ull << 33);
      atomicInc((unsigned*)i + 5, 9); atomicExch(i + 6, 5); atomicSub(i + 7, 2);
    }
    extern "C" __global__ void locked(int* lock, int* value) {
      while (atomicCAS(lock, 0, 1) != 0) {}
      int before = *(volatile int*)value;
      __nanosleep(1);  // gives way to the threads that wait
      *(volatile int*)value = before + 1;
      __threadfence();
      atomicExch(lock, 0);
    }"""
    i, f, d, u = (
        torch.zeros(8, dtype=t, device="cuda") for t in (torch.int32, torch.float32, torch.float64, torch.int64)
    )
    compile_kernel(source, "atomics")((2, 1, 1), (100, 1, 1), (i, f, d, u))
    assert i.tolist()[:4] == [200, 99, -99, 255]
    assert i[4].item() in range(1, 101)
    assert i.tolist()[5:] == [0, 5, -400]
    assert (f[0].item(), d[0].item(), u[0].item()) == (100.0, 50.0, 200 << 33)
    state = torch.zeros(2, dtype=torch.int32, device="cuda")
    compile_kernel(source, "locked")((3, 1, 1), (64, 1, 1), (state[:1], state[1:]))
    assert state.tolist() == [0, 192]


def check_structures_as_arguments_and_buffers_of_arguments() -> None:
    source = """
    struct Range { long long first; int step; char mark; };
    template <int N> struct Weights { float value[N]; };
    extern "C" __global__ void apply(char tag, Range range, const Weights<3> weights, long long* out) {
      out[threadIdx.x] = range.first + range.step * threadIdx.x + range.mark + tag + (long long)weights.value[2];
    }"""

    class Range(ctypes.Structure):
        _fields_ = (("first", ctypes.c_longlong), ("step", ctypes.c_int), ("mark", ctypes.c_char))

    kernel = function(load(Program(source).image()), b"apply")
    weights = (ctypes.c_float * 3)(1, 2, 3)
    out = torch.zeros(4, dtype=torch.int64, device="cuda")
    launch(kernel, (1,), (4,), ctypes.c_char(b"\x01"), Range(1000, 10, b"\x02"), weights, address(out))
    assert out.tolist() == [1006 + 10 * i for i in range(4)]

    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    expect(0, "cuFuncGetParamInfo", kernel, ctypes.c_size_t(2), ctypes.byref(offset), ctypes.byref(size))
    assert (offset.value, size.value) == (24, 12)
    expect(INVALID_VALUE, "cuFuncGetParamInfo", kernel, ctypes.c_size_t(4), ctypes.byref(offset), None)

    class Arguments(ctypes.Structure):
        _fields_ = (("tag", ctypes.c_char), ("range", Range), ("weights", type(weights)), ("out", ctypes.c_void_p))

    packed = Arguments(b"\x01", Range(1000, 10, b"\x02"), weights, out.data_ptr())
    length = ctypes.c_size_t(ctypes.sizeof(packed))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(length), 0)
    out.zero_()
    cuda.synchronize()
    expect(0, "cuLaunchKernel", kernel, 1, 1, 1, 4, 1, 1, 0, None, None, extra)
    cuda.synchronize()
    assert out.tolist() == [1006 + 10 * i for i in range(4)]


def check_names() -> None:
    source = """
    namespace outer { namespace {
      __global__ void hidden(int* out) { *out = 1; }
      template <bool FLAG, int N> __global__ void shown(int* out) { *out = FLAG ? N : -N; }
    } }
    enum class Kind { one, two };
    template <Kind KIND> __global__ void by_kind(int* out) { *out = 10 + static_cast<int>(KIND); }
    template __global__ void by_kind<Kind::two>(int*);
    __global__ void overloaded(int* out, float) { *out = 20; }
    __global__ void overloaded(int* out, int) { *out = 21; }
    static __global__ void internal(int* out) { *out = 30; }
    extern "C" __global__ void f(int* out) { *out = 40; }  // also the mangled name of the type float
    """
    expressions = ("outer::hidden", "&outer::shown<true, 5>", "outer::shown<false, 2 + 2>", "internal")
    program = Program(source, *expressions)
    module, out = load(program.image()), torch.zeros(1, dtype=torch.int32, device="cuda")
    found = []
    for name in [*map(program.lowered, expressions), b"_Z7by_kindIL4Kind1EEvPi"]:
        launch(function(module, name), (1,), (1,), address(out))
        found.append(out.item())
    launch(function(module, b"_Z10overloadedPif"), (1,), (1,), address(out), ctypes.c_float())
    found.append(out.item())
    launch(function(module, b"_Z10overloadedPii"), (1,), (1,), address(out), ctypes.c_int())
    found.append(out.item())
    launch(function(module, b"f"), (1,), (1,), address(out))
    found.append(out.item())
    assert found == [1, 5, -4, 30, 11, 20, 21, 40]
    expect(NOT_FOUND, "cuModuleGetFunction", ctypes.byref(ctypes.c_void_p()), module, b"nothing")
    count = ctypes.c_uint()
    expect(0, "cuModuleGetFunctionCount", ctypes.byref(count), module)
    assert count.value == 8


def check_variables_of_a_module() -> None:
    source = """
    __constant__ float factors[4] = {1, 2, 3, 4};
    namespace own { __device__ int counter; }
    extern "C" __global__ void use(float* out) {
      out[threadIdx.x] = factors[threadIdx.x];
      atomicAdd(&own::counter, 1);
    }"""
    program = Program(source, "factors", "&own::counter")
    modules = [load(program.image()) for _ in range(2)]
    places = []
    for module in modules:
        place, size = ctypes.c_uint64(), ctypes.c_size_t()
        expect(0, "cuModuleGetGlobal_v2", ctypes.byref(place), ctypes.byref(size), module, program.lowered("factors"))
        assert size.value == 16
        places.append(place)
    assert places[0].value != places[1].value
    expect(0, "cuMemcpyHtoD_v2", places[0], (ctypes.c_float * 4)(5, 6, 7, 8), ctypes.c_size_t(16))
    out = torch.zeros(4, device="cuda")
    for module, wanted in zip(modules, ([5, 6, 7, 8], [1, 2, 3, 4]), strict=True):
        launch(function(module, b"use"), (1,), (4,), address(out))
        assert out.tolist() == wanted
    place, value = ctypes.c_uint64(), ctypes.c_int()
    expect(0, "cuModuleGetGlobal_v2", ctypes.byref(place), None, modules[1], program.lowered("&own::counter"))
    expect(0, "cuMemcpyDtoH_v2", ctypes.byref(value), place, ctypes.c_size_t(4))
    assert value.value == 4


def check_images_and_libraries() -> None:
    source = 'extern "C" __global__ void one(int* out) { *out = WHAT; }'
    for what, architecture in (("PTX", "compute_90"), ("PTX", "sm_90"), ("CUBIN", "sm_90")):
        image = Program(source, options=("-DWHAT=7", f"--gpu-architecture={architecture}")).image(what)
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        expect(0, "cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
        expect(0, "cuLibraryGetKernel", ctypes.byref(kernel), library, b"one")
        launch(kernel, (1,), (1,), address(out))
        assert out.item() == 7
        name = ctypes.c_char_p()
        expect(0, "cuKernelGetName", ctypes.byref(name), kernel)
        assert name.value == b"one"
        expect(0, "cuLibraryUnload", library)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "image"
            file.write_bytes(image)
            module = ctypes.c_void_p()
            expect(0, "cuModuleLoad", ctypes.byref(module), str(file).encode())
            launch(function(module, b"one"), (1,), (1,), address(out))


def check_headers_of_the_program_and_of_a_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "there.h").write_text("#define THERE 40\n", encoding="utf-8")
        source = '#include "given/here.h"\n#include <there.h>\n'
        source += 'extern "C" __global__ void sum(int* x) { *x = here() + THERE; }'
        headers = {"given/here.h": "__device__ int here() { return 2; }\n"}
        image = Program(source, options=(f"-I{folder}",), headers=headers).image()
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        launch(function(load(image), b"sum"), (1,), (1,), address(out))
        assert out.item() == 42


def check_half_and_bfloat16() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void convert(const __half* x, __half* y, __nv_bfloat16* z, float* sum) {
      __shared__ __half kept[32];
      kept[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      __half other = kept[31 - threadIdx.x];
      y[threadIdx.x] = __hadd(__hmul(x[threadIdx.x], __float2half(2.0f)), other);
      z[threadIdx.x] = __float2bfloat16(__half2float(x[threadIdx.x]) / 3);
      __half2 pair = __floats2half2_rn(1.5f, 2.5f);
      float total = __low2float(pair) + __high2float(pair) + __half2float(__shfl_sync(0xffffffff, other, 0));
      atomicAdd(sum, total);
    }"""
    x = torch.arange(32.0, device="cuda").half()
    y, z, total = torch.empty_like(x), torch.empty_like(x, dtype=torch.bfloat16), torch.zeros(1, device="cuda")
    compile_kernel(source, "convert")((1, 1, 1), (32, 1, 1), (x, y, z, total))
    torch.testing.assert_close(y, x * 2 + x.flip(0))
    torch.testing.assert_close(z, (x.float() / 3).bfloat16())
    assert total.item() == 32 * (4 + 31)


def check_mathematics() -> None:
    source = """
    extern "C" __global__ void compute(const float* x, float* out, double* wide, int* bits) {
      float v = x[threadIdx.x];
      int i = threadIdx.x * 16;
      out[i] = sqrtf(v); out[i + 1] = rsqrtf(v); out[i + 2] = __expf(v); out[i + 3] = pow(v, 2.0f);
      out[i + 4] = fmaf(v, v, 1.0f); out[i + 5] = max(v, 1.0f); out[i + 6] = abs(-v); out[i + 7] = floor(v);
      out[i + 8] = __fdividef(v, 2.0f); out[i + 9] = erff(v); out[i + 10] = tanhf(v); out[i + 11] = isnan(v * nanf(""));
      wide[threadIdx.x] = sin((double)v) + exp(1.0) + fmin(v, 2.0f);
      bits[i] = __clz(i + 1); bits[i + 1] = __popc(i); bits[i + 2] = __ffs(i); bits[i + 3] = __brev(1u << threadIdx.x);
      bits[i + 4] = __float2int_rn(v); bits[i + 5] = __float2int_rz(1e20f); bits[i + 6] = __umulhi(1u << 31, 6u);
      bits[i + 7] = __float_as_int(v); bits[i + 8] = min(-3, (int)threadIdx.x);
    }"""
    x = torch.linspace(0.5, 3, 8, device="cuda")
    out, wide = torch.zeros(8, 16, device="cuda"), torch.zeros(8, dtype=torch.float64, device="cuda")
    bits = torch.zeros(8, 16, dtype=torch.int32, device="cuda")
    compile_kernel(source, "compute")((1, 1, 1), (8, 1, 1), (x, out, wide, bits))
    rows = (x.sqrt(), x.rsqrt(), x.exp(), x**2, x * x + 1, x.clamp(min=1), x, x.floor(), x / 2, x.erf(), x.tanh())
    for number, row in enumerate(rows):
        torch.testing.assert_close(out[:, number], row)
    assert out[:, 11].eq(1).all()
    torch.testing.assert_close(wide, x.double().sin() + torch.e + x.double().clamp(max=2))
    found = bits.cpu()
    for place in range(8):
        i = place * 16
        reversed_bit = 1 << (31 - place)
        wanted = [32 - (i + 1).bit_length(), i.bit_count(), (i & -i).bit_length()]
        assert found[place, :3].tolist() == wanted
        assert found[place, 3].item() == (reversed_bit if place else reversed_bit - (1 << 32))
    assert found[:, 4].equal(x.cpu().round().int())
    assert found[:, 5].eq(2**31 - 1).all()
    assert found[:, 6].eq(3).all()
    assert found[:, 7].equal(x.cpu().view(torch.int32))
    assert found[:, 8].eq(-3).all()


ADD = """
extern "C" __global__ void add(float* x, float value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += value;
}"""


def add_to(x: torch.Tensor, value: float, kernel: Any) -> None:
    launch(kernel, (4,), (256,), address(x), ctypes.c_float(value), ctypes.c_int(x.numel()))


def check_order_of_the_stream() -> None:
    kernel = function(load(Program(ADD).image()), b"add")
    x, side = torch.zeros(1000, device="cuda"), cuda.Stream()
    cuda.synchronize()
    with cuda.stream(side):
        cuda._sleep(300_000_000)
        add_to(x, 1, kernel)
        assert not side.query()
        doubled = x * 2
    assert x.eq(0).all()
    side.synchronize()
    assert doubled.eq(2).all()


def check_two_streams_at_once() -> None:
    compiled = compile_kernel(REDUCTION, "total<int, 256>")
    streams, results = [cuda.Stream() for _ in range(2)], []
    inputs = [torch.arange(20000, dtype=torch.int32, device="cuda") * sign for sign in (1, -1)]
    cuda.synchronize()
    for _ in range(5):
        for stream, x in zip(streams, inputs, strict=True):
            with cuda.stream(stream):
                out = torch.zeros(1, dtype=torch.int32, device="cuda")
                compiled((4, 1, 1), (256, 1, 1), (x, out, 20000))
                results.append(out)
    cuda.synchronize()
    assert [out.item() for out in results] == [199990000, -199990000] * 5


def check_graphs() -> None:
    kernel = function(load(Program(ADD).image()), b"add")
    x, graph = torch.zeros(1000, device="cuda"), cuda.CUDAGraph()
    with cuda.graph(graph):
        add_to(x, 1, kernel)
        x.mul_(2)
        add_to(x, 3, kernel)
    assert x.eq(0).all()
    graph.replay()
    assert x.eq(5).all()
    graph.replay()
    assert x.eq(15).all()


def check_two_devices() -> None:
    kernel = function(load(Program(ADD).image()), b"add")
    first, second = (torch.zeros(1000, device=f"cuda:{index}") for index in range(2))
    add_to(first, 1, kernel)
    with cuda.device(1):
        add_to(second, 2, kernel)
        cuda.synchronize()
    assert (first.sum().item(), second.sum().item()) == (1000, 2000)


def check_limits_of_a_launch() -> None:
    source = """
    extern "C" __global__ void __launch_bounds__(64) bounded(float* x) { x[threadIdx.x] = 1; }
    extern "C" __global__ void sharing(float* x) {
      __shared__ float own[1024]; extern __shared__ float given[];
      own[threadIdx.x] = x[threadIdx.x]; __syncthreads(); given[threadIdx.x] = own[0]; __syncthreads(); x[0] = given[0];
    }"""
    module, x = load(Program(source).image()), torch.zeros(1024, device="cuda")
    bounded, sharing = function(module, b"bounded"), function(module, b"sharing")
    value = ctypes.c_int()

    def attribute(kernel: ctypes.c_void_p, number: int) -> int:
        expect(0, "cuFuncGetAttribute", ctypes.byref(value), number, kernel)
        return value.value

    assert (attribute(bounded, 0), attribute(sharing, 0)) == (64, 1024)  # threads
    assert attribute(sharing, 1) == 4096  # static shared memory
    launch(bounded, (1,), (65,), address(x), wanted=OUT_OF_RESOURCES)
    launch(bounded, (1,), (64,), address(x))
    launch(sharing, (1,), (2048,), address(x), wanted=INVALID_VALUE)
    launch(sharing, (0,), (32,), address(x), wanted=INVALID_VALUE)
    launch(sharing, (1, 65536), (32,), address(x), wanted=INVALID_VALUE)
    launch(sharing, (1,), (32,), address(x), shared=49152 - 4096)
    launch(sharing, (1,), (32,), address(x), shared=49152 - 4092, wanted=INVALID_VALUE)
    expect(0, "cuFuncSetAttribute", sharing, 8, 100_000)
    launch(sharing, (1,), (32,), address(x), shared=100_000)
    launch(sharing, (1,), (32,), address(x), shared=100_004, wanted=INVALID_VALUE)
    expect(INVALID_VALUE, "cuFuncSetAttribute", sharing, 8, 232448)
    launch(bounded, (2**31,), (32,), address(x), wanted=INVALID_VALUE)
    cuda.synchronize()
    blocks = ctypes.c_int()
    expect(0, "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), bounded, 64, ctypes.c_size_t(0))
    assert blocks.value == 32


def check_a_cooperative_launch_must_fit_the_device() -> None:
    """All its blocks run at once: with 1,024 threads, two on each multiprocessor; with 100 KiB, as many."""
    source = """
    extern "C" __global__ void one(int* x) { x[0] = 1; }
    extern "C" __global__ void sharing(int* x) {
      __shared__ int own[8 * 1024]; extern __shared__ int given[];
      own[threadIdx.x] = x[0]; __syncthreads();
      given[threadIdx.x] = own[31 - threadIdx.x]; __syncthreads(); x[0] = given[0];
    }"""
    module, x = load(Program(source).image()), torch.zeros(1, dtype=torch.int32, device="cuda")
    most = 2 * cuda.get_device_properties().multi_processor_count

    def cooperate(name: bytes, blocks: int, threads: int, shared: int, wanted: int) -> None:
        pointer, stream = address(x), ctypes.c_void_p(cuda.current_stream().cuda_stream)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        sizes = map(ctypes.c_uint, (blocks, 1, 1, threads, 1, 1, shared))
        expect(wanted, "cuLaunchCooperativeKernel", function(module, name), *sizes, stream, arguments)

    cooperate(b"one", most, 1024, 0, 0)
    cooperate(b"one", most + 1, 1024, 0, TOO_LARGE)
    expect(0, "cuFuncSetAttribute", function(module, b"sharing"), 8, 100_000)
    cooperate(b"sharing", most, 32, 68 << 10, 0)
    cooperate(b"sharing", most + 1, 32, 68 << 10, TOO_LARGE)
    cooperate(b"sharing", most + 1, 32, 40 << 10, 0)
    cuda.synchronize()
    assert x.item() == 1


def check_errors_of_the_compiler_are_nvidias() -> None:
    program = Program('extern "C" __global__ void wrong(float* x) { x[0] = missing; }')
    assert program.result == 6  # NVRTC_ERROR_COMPILATION
    assert 'program.cu(1): error: identifier "missing" is undefined' in program.log
    warned = Program('extern "C" __global__ void odd(int* x) { int unused; *x = 1; }')
    assert warned.result == 0
    assert "declared but never referenced" in warned.log


def check_what_cannot_run_is_refused_at_the_launch() -> None:
    source = """
    extern "C" __global__ void t(unsigned* x) { asm volatile("bfind.u32 %0, %1;" : "=r"(x[0]) : "r"(x[1])); }
    extern "C" __global__ void known(unsigned* x) { asm("mov.u32 %0, %laneid;" : "=r"(x[threadIdx.x])); }
    """
    module, x = load(Program(source).image()), torch.zeros(32, dtype=torch.int32, device="cuda")
    launch(function(module, b"known"), (1,), (32,), address(x))
    assert x.tolist() == list(range(32))
    with standard_error() as read:
        launch(function(module, b"t"), (1,), (1,), address(x), wanted=NOT_SUPPORTED)
        said = read()
    assert said.count("\n") == 1
    assert "the kernel t is refused (cudaErrorNotSupported): inline PTX is not supported: bfind.u32" in said
    cuda.synchronize()  # the device has not failed


def check_what_cannot_be_compiled_is_refused_when_it_is_loaded() -> None:
    source = """
    extern "C" __global__ void sample(unsigned long long texture, float4* out) {
      out[0] = tex1Dfetch<float4>(texture, 3);
    }"""
    image = Program(source).image()
    module = ctypes.c_void_p()
    with standard_error() as read:
        expect(NOT_SUPPORTED, "cuModuleLoadData", ctypes.byref(module), image)
        said = read()
    assert said.count("\n") == 1
    assert "sample uses textures and surfaces" in said


def check_other_images_are_refused() -> None:
    module = ctypes.c_void_p()
    with standard_error() as read:
        plain = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n\0"
        expect(NOT_SUPPORTED, "cuModuleLoadData", ctypes.byref(module), plain)
        assert "it is code for a GPU without its source" in read()
    expect(200, "cuModuleLoadData", ctypes.byref(module), b"nonsense\0")
    expect(INVALID_VALUE, "cuModuleLoadData", ctypes.byref(module), None)


def check_jiterator() -> None:
    create, several = cuda.jiterator._create_jit_fn, cuda.jiterator._create_multi_output_jit_fn
    scaled = create("template <typename T> T scaled(T x, T y, T factor) { return x * factor + y; }", factor=1)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64)
    for dtype in dtypes:
        x, y = (torch.randint(-9, 9, (1500,), device="cuda").to(dtype) for _ in range(2))
        torch.testing.assert_close(scaled(x, y, factor=3), x * 3 + y)
        torch.testing.assert_close(scaled(x[::2], y[:750], factor=3), x[::2] * 3 + y[:750])
    complexes = torch.randn(64, dtype=torch.complex128, device="cuda")
    root = create("template <typename T> T root(T x) { return std::exp(x) / (std::sqrt(x) + T(2)); }")
    torch.testing.assert_close(root(complexes), complexes.exp() / (complexes.sqrt() + 2))
    parts = several(
        "template <typename T> void parts(T x, T& whole, T& rest) { whole = floor(x); rest = x - whole; }", 2
    )
    x = torch.randn(8, 33, device="cuda")
    whole, rest = parts(x)
    torch.testing.assert_close(whole, x.floor())
    torch.testing.assert_close(rest, x - x.floor())


def run(check: Callable[[], None]) -> None:
    check()
    cuda.synchronize()
