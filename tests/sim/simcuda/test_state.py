"""The state of torch on simulated devices, as the checks after a case see it."""

from __future__ import annotations

import json
import os

import pytest

from harness.sim.simcuda import build
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

_PROGRAM = """
import json
import torch
from harness.checks.state.guard import StateGuard

torch.cuda.init()
guard = StateGuard()
guard.capture()
tensors = [torch.randn(1, 2, 16, 16, device="cuda", dtype=torch.float16) for _ in range(3)]
torch.nn.functional.scaled_dot_product_attention(*tensors)
by_torch = [problem.text for problem in guard.compare()]
guard.capture()
torch._C._set_sdp_priority_order([2, 0, 3, 1, 4])
by_the_case = [problem.text for problem in guard.compare()]
print(json.dumps([by_torch, by_the_case]))
"""


@needs_cuda_build
def test_the_first_attention_puts_cudnn_first() -> None:
    done = run_python(_PROGRAM, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    by_torch, by_the_case = json.loads(done.stdout.splitlines()[-1])
    assert by_torch == []
    assert by_the_case == [
        "did not restore the priority order of attention backends (now [2, 0, 3, 1, 4], was [3, 1, 2, 0, 4])"
    ]


_LAST_ERROR = """
import json
import torch
from harness.checks.state.guard import StateGuard

torch.cuda.init()
guard = StateGuard()
guard.capture()
torch.cuda.cudart().cudaHostUnregister(4096)
texts = [problem.text for problem in guard.compare()]
restored = guard.restore()
torch.zeros(1, device="cuda")  # would raise what is left
guard.capture()
try:
    torch.empty(1 << 60, device="cuda")
except torch.OutOfMemoryError:
    pass
by_torch = [problem.text for problem in guard.compare()]
print(json.dumps([texts, restored, by_torch]))
"""


@needs_cuda_build
def test_an_error_that_a_call_has_left_is_reported_and_taken() -> None:
    """torch would raise it after the next launch, in the next case. torch itself resets the errors that it detects."""
    done = run_python(_LAST_ERROR, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    texts, restored, by_torch = json.loads(done.stdout.splitlines()[-1])
    assert texts == [
        "did not restore the last error of the CUDA runtime (now 'cudaErrorHostMemoryNotRegistered', was 'cudaSuccess')"
    ]
    assert (restored, by_torch) == ([], [])


_OTHER_DEVICE = """
import json
import os
import torch
from harness.checks.state.guard import StateGuard

UUIDS = ["GPU-51ed0000-0000-4000-8000-000000000000", "GPU-51ed0000-0000-4000-8000-000000000001"]
os.environ["CUDA_VISIBLE_DEVICES"] = UUIDS[1]
guard = StateGuard()
guard.capture()
{changed}
torch.cuda.init()
os.environ["CUDA_VISIBLE_DEVICES"] = UUIDS[1]
texts = [problem.text for problem in guard.compare()]
print(json.dumps([texts, guard.restore(), [problem.text for problem in guard.compare()]]))
"""


@needs_cuda_build
@pytest.mark.parametrize("changed", ["", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'"])
def test_a_case_that_initialises_cuda_with_other_devices_is_reported(changed: str) -> None:
    """The variable is restored when the case ends, but the process has a device other than the leased one."""
    program = _OTHER_DEVICE.replace("{changed}", changed)
    done = run_python(program, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    texts, left, later = json.loads(done.stdout.splitlines()[-1])
    name = "the devices that CUDA was initialised with"
    zero, one = (f"'GPU-51ed0000-0000-4000-8000-00000000000{number}'" for number in (0, 1))
    reported = f"did not restore {name} (added {zero}; removed {one}; now 1 entry, was 1: {one})"
    assert texts == ([reported] if changed else [])
    assert left == ([f"could not restore {name}"] if changed else [])
    assert later == []


_BLOCK = """
import json
import torch
from harness.checks import origins

torch.cuda.init()
origins.record_allocation_history(["cuda_allocated"])
known = origins.GrowthOrigins()

def makes_a_block():
    return torch.ones(1 << 20, device="cuda")

kept = makes_a_block()
print(json.dumps(known.of(["cuda_allocated"])["cuda_allocated"]))
"""


@needs_cuda_build
def test_a_block_that_is_left_is_reported_with_its_stack() -> None:
    done = run_python(_BLOCK, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout.splitlines()[-1])
    assert line == "4.0 MiB in 1 block allocated at <string>:11 makes_a_block < <string>:13 <module>"


_STREAMS = """
import json
import torch
from harness.checks.meters import MeterReader

meters = MeterReader("full")
before = meters.read()
kept = torch.cuda.Stream()
after = meters.read()
names = ("threads", "heap_bytes", "mapped_bytes", "cuda_streams")
print(json.dumps([torch.cuda.is_initialized(), after["threads"] - before["threads"], *map(after.get, names[1:])]))
"""


@needs_cuda_build
def test_a_process_that_only_made_a_stream_uses_the_devices() -> None:
    """torch does not call this an initialisation, but the runtime has its threads, and heap memory."""
    done = run_python(_STREAMS, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False, 0, None, None, 1]


_POOL = """
import json
import torch
from harness.checks.state.guard import StateGuard

torch.zeros(1, device="cuda")
guard = StateGuard()
guard.capture()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept = torch.zeros(1, device="cuda")
restored = [problem.text for problem in guard.compare()]
left = torch.cuda.use_mem_pool(pool)
left.__enter__()
print(json.dumps([restored, [problem.text for problem in guard.compare()]]))
"""


@needs_cuda_build
def test_a_memory_pool_that_is_left_current_is_reported() -> None:
    done = run_python(_POOL, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    restored, left = json.loads(done.stdout.splitlines()[-1])
    assert restored == []
    (text,) = left
    assert text.startswith("did not restore the memory pool of new blocks on cuda:0 (now 'private pool (")
