"""The health check of a device: on the real CPU, with fake torches that fail, and the judgement of its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from harness.core.disposable import DisposableRun
from harness.devices import health
from harness.devices.device import CPU, Device
from harness.devices.health import DeviceHealth, check_device, judge_examination
from tests.preloaded import run_script

pytestmark = pytest.mark.acceptance

GPU = Device(uuid="GPU-00000000-0000-4000-8000-000000000000", kind="cuda", name="Fake GPU")

_STEPS = [b'{"step": "import of torch"}', b'{"step": "integer arithmetic"}']
_PASSED = [*_STEPS, b'{"healthy": true, "facts": {"bytes": 8}}']
_FAILED = [*_STEPS, b'{"healthy": false, "text": "integer arithmetic: word 3 is wrong"}']


@pytest.mark.parametrize(
    ("in_time", "status", "lines", "errors", "healthy", "text"),
    [
        (True, 0, _PASSED, b"", True, "computes and copies correctly"),
        (True, 0, [b"a library's word", *_PASSED, b"[1]", b'{"healthy'], b"", True, "computes and copies correctly"),
        (True, 1, _FAILED, b"", False, "integer arithmetic: word 3 is wrong"),
        (True, -11, _FAILED, b"", False, "integer arithmetic: word 3 is wrong"),
        (True, -11, _PASSED, b"", False, "passed, but the process ended with SIGSEGV"),
        (True, 3, _PASSED, b"gone\n\n", False, "passed, but the process ended with exit status 3; last output: gone"),
        (True, 0, _STEPS, b"", False, "ended with exit status 0 during integer arithmetic, without a result"),
        (True, 1, [], b"x\nno module\n", False, "ended with exit status 1 during process start, without a result; "
         "last output: no module"),
        (False, -15, _STEPS, b"", False, "hangs during integer arithmetic: did not end within 60 s"),
        (False, -9, _PASSED, b"", False, "hangs during process exit: did not end within 60 s"),
        (False, 0, [], b"", False, "hangs during process start: did not end within 60 s"),
        (False, None, _STEPS, b"", False, "hangs during integer arithmetic and could not be killed"),
        (True, 0, [b'{"healthy": "yes"}'], b"", False, "None"),
        (True, 0, [b'{"healthy": true, "facts": 7}'], b"", True, "computes and copies correctly"),
        (True, -6, [b'{"step": "a\\u0000\\nb"}'], b"\xff\x00", False, "ended with SIGABRT during a\\x00, without a "
         "result; last output: \\xff\\x00"),
    ],
)  # fmt: skip
def test_how_a_child_ended_is_judged(
    in_time: bool, status: int | None, lines: list[bytes], errors: bytes, healthy: bool, text: str
) -> None:
    facts = {"bytes": 8} if healthy and lines[-1] != b'{"healthy": true, "facts": 7}' else {}
    run = DisposableRun(status, in_time, 60.0, b"\n".join(lines), errors)
    assert judge_examination(run) == DeviceHealth(healthy, text, 60.0, facts)


def test_the_cpu_is_healthy() -> None:
    found = check_device(CPU, timeout=300, seed=5)
    assert (found.healthy, found.text) == (True, "computes and copies correctly")
    assert found.facts["bytes"] == 32 << 20
    assert 0 < found.facts["seconds"] < found.seconds


def test_a_seed_decides_the_pattern_and_nothing_of_torch_is_changed() -> None:
    script = """
        import json, torch
        from harness.backends import table
        from harness.devices.health import examine_device
        def state():
            return [torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_float32_matmul_precision(),
                    torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()]
        before, steps = state(), []
        sums = [examine_device(table.CPU, seed, tell=steps.append)["checksum"] for seed in (1, 1, 2)]
        assert sums[0] == sums[1] != sums[2], sums
        assert state() == before
        assert len(steps) == len(set(steps)) * 3 > 15, steps
    """
    ran = run_script(textwrap.dedent(script))
    assert ran.returncode == 0, ran.stderr


def test_a_device_at_fault_is_unhealthy_without_an_examination(tmp_path: Path) -> None:
    sick = Device(uuid="GPU-1", kind="cuda", name="GPU", fault="name: GPU is lost")
    assert check_device(sick, environ={"PATH": str(tmp_path)}) == DeviceHealth(
        False, "at fault: name: GPU is lost", 0.0
    )


# Each text is a package named torch that the child finds before the real one.

_HANGS = """
import signal, time
{prelude}
time.sleep(600)
"""

_CRASHES = """
import ctypes
ctypes.string_at(0)
"""

# Replaces the real torch: its cuda device is the CPU, and `fault` is the code that breaks it.
_REAL = """
import importlib, os, sys
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["torch"]
torch = importlib.import_module("torch")
cpu, zeros_like, arange = torch.device("cpu"), torch.zeros_like, torch.arange
def device(kind, index):
    mask = os.environ["CUDA_VISIBLE_DEVICES"]
    assert (kind, index, mask) == ("cuda", 0, "GPU-00000000-0000-4000-8000-000000000000"), (kind, index, mask)
    return cpu
torch.device = device
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
{fault}
"""

_FAULTS = {
    "nothing": "",
    "a bit that flips in a copy": """
class Copied:
    def __init__(self, tensor): self.tensor = tensor
    def copy_(self, other):
        self.tensor.copy_(other)
        self.tensor[0x1234] ^= 0x40
    def numel(self): return self.tensor.numel()
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        return function(*(each.tensor if isinstance(each, Copied) else each for each in arguments), **keywords or {})
torch.zeros_like = lambda tensor: Copied(zeros_like(tensor))
""",
    "a wrong product": """
multiply = torch.Tensor.__matmul__
def wrong(left, right):
    product = multiply(left, right)
    if product.dtype is torch.float64:
        product[17, 400] += 1
    return product
torch.Tensor.__matmul__ = wrong
""",
    "a product with a NaN": """
multiply = torch.Tensor.__matmul__
def wrong(left, right):
    product = multiply(left, right)
    product[3, 0] = float("nan")
    return product
torch.Tensor.__matmul__ = wrong
""",
    "a wrong sum": """
class Count(torch.Tensor):
    def sum(self): return super().sum() + 1
torch.arange = lambda *arguments, **keywords: arange(*arguments, **keywords).as_subclass(Count)
""",
    "a wrong word": """
add = torch.Tensor.__add__
def wrong(left, right):
    total = add(left, right)
    if total.dtype is torch.int64 and total.numel() > 1:
        total[1024] ^= 1
    return total
torch.Tensor.__add__ = wrong
""",
    "an error of cuda": """
def synchronize(_): raise RuntimeError("CUDA error: an illegal memory access was encountered\\\\nCompile with ...")
torch.cuda.synchronize = synchronize
""",
    "an end that crashes": """
import atexit, ctypes
atexit.register(ctypes.string_at, 0)
""",
}


def torch_of(folder: Path, source: str) -> dict[str, str]:
    """Return the environment of a process whose torch is `source`."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.ways(
    ("fault", "text"),
    [
        ("nothing", "computes and copies correctly"),
        (
            "a bit that flips in a copy",
            "copy on the device: 1 of 268435456 bits differ; the first is in byte 4660: 0x",
        ),
        ("a wrong word", "integer arithmetic: word 1024 is 0x"),
        ("a wrong sum", "reductions: the sum of arange is 8796090925057 instead of 8796090925056"),
        ("a wrong product", "matrix product in float64: row 17 of 512 is wrong"),
        ("a product with a NaN", "matrix product in float32: row 3 has the element nan, expected a whole number"),
        ("an error of cuda", "creation of a context: CUDA error: an illegal memory access was encountered"),
        ("an end that crashes", "passed, but the process ended with SIGSEGV"),
    ],
)
def test_each_fault_of_a_gpu_is_found(tmp_path: Path, fault: str, text: str) -> None:
    environ = torch_of(tmp_path, _REAL.replace("{fault}", _FAULTS[fault]))
    found = check_device(GPU, timeout=300, environ=environ)
    assert found.text.startswith(text)
    assert found.healthy == (fault == "nothing")


_FEW_OPERATORS = """
def missing(*_): raise NotImplementedError("Could not run 'aten::bitwise_xor' with arguments from the 'npu' backend")
torch.Tensor.__xor__ = torch.Tensor.__matmul__ = missing
"""


def test_a_device_that_lacks_operators_is_not_sick(tmp_path: Path) -> None:
    """The operators that it has are still checked."""
    found = check_device(GPU, timeout=300, environ=torch_of(tmp_path, _REAL.replace("{fault}", _FEW_OPERATORS)))
    steps = ["integer arithmetic", "matrix product in float32", "matrix product in float64"]
    assert found.text == f"copies correctly; torch has no operators on it for {', '.join(steps)}"
    assert found.healthy
    assert found.facts["unchecked"] == steps


def test_a_crash_names_its_signal_and_step(tmp_path: Path) -> None:
    found = check_device(GPU, timeout=60, environ=torch_of(tmp_path, _CRASHES))
    assert (found.healthy, found.text) == (
        False,
        "ended with SIGSEGV during import of torch, without a result",
    )


def test_a_torch_without_cuda_is_reported(tmp_path: Path) -> None:
    environ = torch_of(tmp_path, "raise ImportError('libcuda.so.1: no such file')")
    assert check_device(GPU, timeout=60, environ=environ).text == "import of torch: libcuda.so.1: no such file"


@pytest.mark.ways(
    "prelude",
    ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"],
    ids=["ends at SIGTERM", "ignores SIGTERM"],
)
def test_a_hang_is_killed_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prelude: str) -> None:
    monkeypatch.setattr(health, "LADDER", ((signal.SIGTERM, 0.5), (signal.SIGKILL, 10.0)))
    mark = tmp_path / "pid"
    prelude += f"\nimport os; open({str(mark)!r}, 'w').write(str(os.getpid()))"
    environ = torch_of(tmp_path, _HANGS.replace("{prelude}", prelude))
    found = check_device(GPU, timeout=3, environ=environ)
    assert not found.healthy
    assert found.text.startswith("hangs during import of torch: did not end within ")
    assert 3 <= found.seconds < 10
    assert not Path("/proc", mark.read_text()).exists()


def test_the_children_of_a_hanging_process_are_killed_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    prelude = f"""
import subprocess, sys
deaf = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN);"
                         "print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
deaf.stdout.readline()
open({str(mark)!r}, 'w').write(str(deaf.pid))
"""
    environ = torch_of(tmp_path, _HANGS.replace("{prelude}", prelude))
    assert not check_device(GPU, timeout=3, environ=environ).healthy
    try:
        ends = os.pidfd_open(int(mark.read_text()))
    except ProcessLookupError:
        return
    with os.fdopen(ends):
        # Readable once the process has ended after SIGKILL. It is not our child, so this test cannot wait for it.
        assert select.select([ends], [], [], 30)[0]


def test_a_child_that_cannot_be_killed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No test can make a process that survives SIGKILL, so the ladder here ends before SIGKILL.
    monkeypatch.setattr(health, "LADDER", ((signal.SIGTERM, 0.2),))
    mark = tmp_path / "pid"
    prelude = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    prelude += f"\nimport os; open({str(mark)!r}, 'w').write(str(os.getpid()))"
    found = check_device(GPU, timeout=3, environ=torch_of(tmp_path, _HANGS.replace("{prelude}", prelude)))
    pid = int(mark.read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert found.text == "hangs during import of torch and could not be killed"


def test_a_child_that_nobody_ends_ends_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.devices.health", "--kind", "cuda", "--limit", "1"]
    began = time.monotonic()
    done = subprocess.run(command, env=torch_of(tmp_path, _HANGS.replace("{prelude}", "")), timeout=60, check=False)
    assert done.returncode == -signal.SIGALRM
    assert time.monotonic() - began < 30


def test_an_interpreter_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert check_device(CPU) == DeviceHealth(
        False, "the examination process does not start: No such file or directory", 0.0
    )


def test_the_program_prints_lines_of_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.devices.health", "--kind", "cuda"]
    environ: dict[str, Any] = torch_of(tmp_path, "raise ImportError('no\\nlibrary')")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        ['{"step": "import of torch"}', '{"healthy": false, "text": "import of torch: no\\nlibrary"}'],
    )


def test_examining_inside_a_process_names_the_step(tmp_path: Path) -> None:
    script = "from harness.backends import cuda; from harness.devices.health import *; examine_device(cuda.BACKEND, 0)"
    environ = torch_of(tmp_path, "raise ImportError('x')")
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "harness.devices.health.HealthError: import of torch: x"
