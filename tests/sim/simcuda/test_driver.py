"""The simulated driver and NVML, as programs call them that use neither torch nor the runtime."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import linux
from harness.sim.simcuda import build, toolchain
from tests.devices.compiled import compile_library
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

pytestmark = [pytest.mark.acceptance, needs_cuda_build]

_BEGIN = """
import ctypes, sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
cu = ctypes.CDLL("libcuda.so.1")
def expect(wanted, name, *arguments):
    found = getattr(cu, name)(*arguments)
    assert found == wanted, f"{name} returned {found}, not {wanted}"
def call(name, *arguments):
    expect(0, name, *arguments)
call("cuInit", 0)
address, context, other, stream, graph = c_uint64(), c_void_p(), c_void_p(), c_void_p(), c_void_p()
def allocate(bytes=4096):
    call("cuMemAlloc_v2", byref(address), c_size_t(bytes))
    return address.value
def active(device=0):
    flags, state = c_uint(), c_int()
    call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(state))
    return state.value
def retain():
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
"""

_PROGRAMS = {
    "without a context": """
expect(201, "cuMemAlloc_v2", byref(address), c_size_t(4096))
expect(201, "cuCtxSynchronize")
expect(201, "cuStreamCreate", byref(stream), 0)
expect(201, "cuMemsetD8_v2", address, 0, c_size_t(1))
expect(201, "cuProfilerStart")
call("cuDevicePrimaryCtxRetain", byref(context), 0)
expect(201, "cuCtxSynchronize")  # to retain a context does not make it current
call("cuCtxSetCurrent", context)
call("cuCtxSynchronize")
allocate()
""",
    "the last release": """
retain()
call("cuDevicePrimaryCtxRetain", byref(other), 0)
assert other.value == context.value
free, total, before = c_size_t(), c_size_t(), c_size_t()
call("cuMemGetInfo_v2", byref(before), byref(total))
allocate(1 << 20)
call("cuDevicePrimaryCtxRelease_v2", 0)
assert active()
call("cuMemsetD8_v2", address, 1, c_size_t(16))
call("cuDevicePrimaryCtxRelease_v2", 0)
assert not active()
expect(201, "cuCtxSynchronize")
expect(201, "cuDevicePrimaryCtxRelease_v2", 0)
retain()
call("cuMemGetInfo_v2", byref(free), byref(total))
assert free.value == before.value, "the memory of the context is still in use"
expect(1, "cuMemFree_v2", address)
""",
    "a context that is made": """
call("cuCtxCreate_v2", byref(context), 0, 1)
device = c_int()
call("cuCtxGetDevice", byref(device))
assert device.value == 1
allocate()
call("cuCtxCreate_v4", byref(other), None, 0, 0)
call("cuCtxGetCurrent", byref(stream))
assert stream.value == other.value
call("cuCtxDestroy_v2", other)
call("cuCtxGetCurrent", byref(stream))
assert stream.value == context.value
call("cuCtxDestroy_v2", context)
expect(201, "cuCtxSynchronize")
expect(201, "cuCtxDestroy_v2", context)
assert not active(1)
""",
    "a runtime that the program uses": """
runtime = ctypes.CDLL(None)
assert runtime.cudaFree(None) == 0
call("cuCtxSynchronize")
retain()
call("cuDevicePrimaryCtxRelease_v2", 0)
assert active()
allocate()
""",
    "a reset": """
retain()
allocate()
call("cuDevicePrimaryCtxReset_v2", 0)
expect(1, "cuMemFree_v2", address)
""",
    "copies of rectangles": """
class Copy(ctypes.Structure):
    _fields_ = [
        ("from_x", c_size_t), ("from_y", c_size_t), ("from_type", c_uint), ("from_host", c_void_p),
        ("from_device", c_uint64), ("from_array", c_void_p), ("from_pitch", c_size_t),
        ("to_x", c_size_t), ("to_y", c_size_t), ("to_type", c_uint), ("to_host", c_void_p),
        ("to_device", c_uint64), ("to_array", c_void_p), ("to_pitch", c_size_t),
        ("width", c_size_t), ("height", c_size_t),
    ]
retain()
host = (ctypes.c_ubyte * 64)(*range(64))  # eight rows of eight
copy = Copy(from_x=2, from_y=1, from_type=1, from_host=ctypes.addressof(host), from_pitch=8, to_type=2,
            to_device=allocate(), to_pitch=16, width=4, height=3)
call("cuMemcpy2D_v2", byref(copy))
back = (ctypes.c_ubyte * 48)()
call("cuMemcpyDtoH_v2", back, address, c_size_t(48))
assert [list(back[row:row + 4]) for row in (0, 16, 32)] == [[8 * y + x for x in range(2, 6)] for y in (1, 2, 3)]
copy.from_type = 3
expect(801, "cuMemcpy2D_v2", byref(copy))
""",
    "a graph of nodes": """
retain()
class Fill(ctypes.Structure):
    _fields_ = [("to", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("element", c_uint), ("width", c_size_t),
                ("height", c_size_t)]
call("cuGraphCreate", byref(graph), 0)
nodes = [c_void_p() for _ in range(3)]
call("cuGraphAddEmptyNode", byref(nodes[0]), graph, None, c_size_t(0))
fill = Fill(allocate(), 0, 7, 1, 16, 1)
call("cuGraphAddMemsetNode", byref(nodes[1]), graph, byref(nodes[0]), c_size_t(1), byref(fill), context)
called = []
HOST = ctypes.CFUNCTYPE(None, c_void_p)
class Call(ctypes.Structure):
    _fields_ = [("function", HOST), ("data", c_void_p)]
host = Call(HOST(lambda data: called.append(data)), 5)
call("cuGraphAddHostNode", byref(nodes[2]), graph, None, c_size_t(0), byref(host))
call("cuGraphAddDependencies", graph, byref(nodes[1]), byref(nodes[2]), c_size_t(1))
edges = c_size_t()
call("cuGraphGetEdges_v2", graph, None, None, None, byref(edges))
assert edges.value == 2
kind = c_int()
call("cuGraphNodeGetType", nodes[1], byref(kind))
assert kind.value == 2
executable = c_void_p()
call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
call("cuGraphLaunch", executable, None)
call("cuCtxSynchronize")
back = (ctypes.c_ubyte * 16)()
call("cuMemcpyDtoH_v2", back, address, c_size_t(16))
assert called == [5] and set(back) == {7}
call("cuGraphExecUpdate_v2", executable, graph, (c_uint64 * 4)())
""",
    "a capture": """
retain()
call("cuStreamCreate", byref(stream), 1)
status, number, count = c_int(), c_uint64(), c_size_t()
call("cuStreamBeginCapture_v2", stream, 0)
call("cuStreamGetCaptureInfo_v3", stream, byref(status), byref(number), byref(graph), None, None, byref(count))
assert status.value == 1 and number.value and graph.value
call("cuStreamEndCapture", stream, byref(graph))
call("cuStreamGetCaptureInfo_v2", stream, byref(status), byref(number), None, None, None)
assert status.value == 0
""",
    "managed memory and pools": """
retain()
call("cuMemAllocManaged", byref(address), c_size_t(4096), 1)
call("cuMemAdvise", address, c_size_t(4096), 1, 0)
call("cuMemPrefetchAsync", address, c_size_t(4096), 0, None)
class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]
pool = c_void_p()
call("cuMemGetDefaultMemPool", byref(pool), byref(Location(1, 0)), 1)
call("cuMemGetMemPool", byref(other), byref(Location(1, 0)), 1)
assert pool.value == other.value
expect(801, "cuMemGetMemPool", byref(other), byref(Location(2, 0)), 1)
expect(1, "cuMemGetMemPool", byref(other), byref(Location(0, 0)), 1)
""",
}


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return build.simcuda_environment(build.build_simcuda(), os.environ)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_of_the_driver(name: str, environ: dict[str, str]) -> None:
    done = run_python(_BEGIN + _PROGRAMS[name], environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_each_function_has_its_newest_signature() -> None:
    """A program for the newest CUDA would otherwise get an older function, which takes other arguments."""
    major = toolchain.cuda_major()
    folder = next(path for path in toolchain.header_folders(major, sys.path) if (path / "cuda.h").is_file())
    header = (folder / "cuda.h").read_text(encoding="utf-8")
    newest = dict(re.findall(r"^#define (cu\w+) +(?:__CUDA_API_\w+\()?(cu\w+_v\d+)\)?", header, re.MULTILINE))
    table = (build.ROOT / "simcuda" / "csrc" / "driver" / "entry_points.def").read_text(encoding="utf-8")
    served: dict[str, set[str]] = {}
    for name, function in re.findall(r"^ENTRY\((\w+), \d+, (\w+)\)", table, re.MULTILINE):
        served.setdefault(name, set()).add(function)
    assert len(newest.keys() & served.keys()) > 20
    assert {name for name in newest.keys() & served.keys() if newest[name] not in served[name]} == set()


_REFUSED = """
retain()
for _ in range(2):
    expect(801, "cuLinkCreate_v2", 0, None, None, None)
expect(801, "cuGetExportTable", None, None)
"""


#: Functions with several signatures: the version of CUDA that a program was built for decides which one it gets.
_VERSIONS = {
    "cuGraphAddDependencies": {11000: "", 13000: "_v2"},
    "cuGraphGetEdges": {11000: "", 13000: "_v2"},
    "cuStreamGetCaptureInfo": {10010: "", 12000: "_v2", 13000: "_v3"},
    "cuMemAdvise": {12000: "", 13000: "_v2"},
    "cuMemPrefetchAsync": {12000: "", 13000: "_v2"},
    "cuCtxCreate": {11000: "_v2", 12000: "_v3", 13000: "_v4"},
}
_LOOK_UP = """
for name, suffixes in VERSIONS.items():
    for version, suffix in suffixes.items():
        found = c_void_p()
        call("cuGetProcAddress_v2", name.encode(), byref(found), version, c_uint64(0), None)
        assert found.value == ctypes.cast(getattr(cu, name + suffix), c_void_p).value, (name, version)
"""


def test_a_program_gets_the_functions_of_its_version(environ: dict[str, str]) -> None:
    done = run_python(f"{_BEGIN}VERSIONS = {_VERSIONS}\n{_LOOK_UP}", environ)
    assert done.returncode == 0, done.stderr


def test_what_is_refused_is_named_once(environ: dict[str, str]) -> None:
    done = run_python(_BEGIN + _REFUSED, environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "Simulated CUDA: cuLinkCreate_v2 is refused (CUDA_ERROR_NOT_SUPPORTED): it needs a GPU",
        "Simulated CUDA: cuGetExportTable is refused (CUDA_ERROR_NOT_SUPPORTED): programs that have CUDA's runtime "
        "linked in cannot run, such as CuPy and cuda.bindings.runtime",
    ]


_READINGS = """
import pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByIndex(0)
assert sum(word.bit_count() for word in nvml.nvmlDeviceGetCpuAffinity(device, 64)) >= 1
assert list(nvml.nvmlDeviceGetMemoryAffinity(device, 1, 0)) == [1]
assert nvml.nvmlDeviceGetTotalEnergyConsumption(device) > 0
assert nvml.nvmlDeviceGetPcieThroughput(device, nvml.NVML_PCIE_UTIL_TX_BYTES) == 0
assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(device) == nvml.nvmlDeviceGetMaxPcieLinkGeneration(device) == 5
assert nvml.nvmlDeviceGetCurrPcieLinkWidth(device) == 16
assert nvml.nvmlDeviceGetPowerState(device) == nvml.nvmlDeviceGetPerformanceState(device) == 0
assert nvml.nvmlDeviceGetSerial(device) == "51ed0"
assert nvml.nvmlDeviceGetUUID(device).startswith("GPU-51ed0000-")
assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(device))) == 0
"""


def test_readings_of_nvml(environ: dict[str, str]) -> None:
    done = run_python(_READINGS, environ)
    assert done.returncode == 0, done.stderr


#: A `read` in front of the C library's: the process has ended after its file was opened.
_GONE = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t read(int file, void* to, size_t size) {
  char name[64], path[256];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(name, path, sizeof path - 1);
  if (length > 5 && memcmp(path, "/proc/", 6) == 0 && memcmp(path + length - 5, "/stat", 5) == 0) {
    errno = ESRCH;
    return -1;
  }
  return syscall(SYS_read, file, to, size);
}
"""

_PROCESSES = """
import sys
import pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    found = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    nvml.nvmlDeviceGetMemoryInfo(device)
    nvml.nvmlDeviceGetUtilizationRates(device)
print("alive")
"""


def test_a_process_that_ends_while_nvml_reads_about_it(environ: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "gone.c"
    source.write_text(_GONE)
    gone = compile_library(source, tmp_path / "gone.so")
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / f"{os.getpid()}-1").write_bytes(bytes(4096))
    preload = f"{gone}:{environ[build.PRELOAD]}"
    done = run_python(_PROCESSES, {**environ, "LD_PRELOAD": preload, "SIMCUDA_LEDGER": str(tmp_path / "ledger")})
    assert done.stdout == "alive\n", done.stderr


def test_processes_that_end_all_the_time(environ: dict[str, str], tmp_path: Path) -> None:
    """Each process has a page of the ledger, as if it used a device, and ends at once. Pages vanish, too."""
    variables = {**os.environ, **environ, "SIMCUDA_LEDGER": str(tmp_path)}
    command = [sys.executable, "-c", _PROCESSES, "3000"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        while reader.poll() is None:
            with subprocess.Popen(["/bin/true"]) as child:
                started = linux.process_start_time(child.pid)
                page = tmp_path / f"{child.pid}-{started}"
                page.write_bytes(bytes(4096))
            page.unlink(missing_ok=True)
        out, errors = reader.communicate()
    assert (reader.returncode, out) == (0, "alive\n"), errors


def test_no_library_of_the_simulation_is_in_this_process() -> None:
    assert not hasattr(ctypes.CDLL(None), "simcudaIsInitialized")
