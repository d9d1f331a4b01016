"""The interposer in front of the simulated runtime: the effect of each fault, and properties of the library."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.backends import cuda, simcuda
from harness.sim.interposer import front
from harness.sim.interposer.front import (
    PRELOAD,
    InterposerError,
    add_interposer,
    check_interposer,
    interposer_environment,
)
from harness.sim.native import faults
from harness.sim.native.provider import ProvidedDevice
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import build as simulated
from harness.sim.softdevice import registration as soft

pytestmark = pytest.mark.acceptance

_CHECKS = Path(__file__).with_name("checks.py")


@pytest.fixture(scope="module")
def preloaded() -> dict[str, str]:
    """Return the environment of a process with the interposer in front of the simulated CUDA, without a fault."""
    try:
        libraries = [front.build_interposer(lambda _: None), *simulated.build_simcuda(lambda _: None).runtime]
    except BuildError as error:
        pytest.skip(str(error))
    return {**os.environ, PRELOAD: ":".join(map(str, libraries)), "SIMCUDA_DEVICE_MEMORY": "64MiB"}


def run(preloaded: dict[str, str], *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env={**preloaded, **more}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("name", faults.fault_catalogue(cuda.BACKEND.kind))
def test_a_fault_takes_effect(preloaded: dict[str, str], name: str) -> None:
    """The fault breaks what its description says, and without it the same check passes."""
    for state in ("whole", "broken"):
        done = run(preloaded, str(_CHECKS), name, state)
        assert done.returncode == 0, f"{state}: {done.stderr}"
        assert done.stdout == f"passed {name}\n"


def test_an_invalid_injection_ends_the_process(preloaded: dict[str, str]) -> None:
    done = run(preloaded, "-c", "print('ran')", CUDA_INJECT="slwo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("CUDA_INJECT: fault 'slwo': expected one of wait_ignored, ")


def test_without_a_runtime_behind_it_a_call_says_so(preloaded: dict[str, str]) -> None:
    alone = {**preloaded, PRELOAD: preloaded[PRELOAD].partition(":")[0]}
    done = run(alone, "-c", "import ctypes; print(ctypes.CDLL(None).cudaDeviceSynchronize())")
    assert done.stdout == "302\n", done.stderr  # cudaErrorSharedObjectSymbolNotFound


def test_it_finds_a_runtime_that_is_in_no_global_scope(preloaded: dict[str, str]) -> None:
    first, *others = preloaded[PRELOAD].split(":")
    runtime = next(library for library in others if "libcudart" in library)
    script = f"import ctypes; ctypes.CDLL({runtime!r}, mode=0); print(ctypes.CDLL(None).cudaDeviceSynchronize())"
    done = run({**preloaded, PRELOAD: first}, "-c", script)
    assert done.stdout == "0\n", done.stderr


def test_nvidias_own_runtime_can_be_behind_it(preloaded: dict[str, str]) -> None:
    """NVIDIA's runtime finds no driver here, and returns the same error as without the interposer."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [file for folder in folders for file in Path(folder).rglob("libcudart.so.*")]
    if not found:
        pytest.skip("no wheel has NVIDIA's runtime")
    script = (
        f"import ctypes; ctypes.CDLL({str(found[0])!r}, ctypes.RTLD_GLOBAL); own = ctypes.CDLL({str(found[0])!r})\n"
        "x = ctypes.c_void_p(); size = ctypes.c_size_t(8); front = ctypes.CDLL(None)\n"
        "told = [library.cudaMalloc(ctypes.byref(x), size) for library in (own, front)]\n"
        "print(hasattr(front, 'interposerFaultCount'), len(set(told)), told[0] > 0)\n"
    )
    first = preloaded[PRELOAD].partition(":")[0]
    done = run({**preloaded, PRELOAD: first}, "-c", script, CUDA_INJECT="slow")
    assert done.stdout == "True 1 True\n", done.stderr


def test_it_comes_first_and_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "build_interposer", lambda **_: Path("/cache/libcudafaults.so"))
    assert interposer_environment((), {"LD_PRELOAD": "b"}, {}) == {"LD_PRELOAD": "b"}
    assert interposer_environment(
        ("slow", "wait_ignored:0.5"), {"LD_PRELOAD": "b:c", "X": "1"}, {"LD_PRELOAD": "c"}
    ) == {
        "LD_PRELOAD": "/cache/libcudafaults.so:b:c",
        "X": "1",
        "CUDA_INJECT": "slow;wait_ignored:0.5",
    }
    assert interposer_environment(("slow",), {}, {"LD_PRELOAD": "c"})["LD_PRELOAD"] == "/cache/libcudafaults.so:c"
    assert interposer_environment(("slow",), {}, {})["LD_PRELOAD"] == "/cache/libcudafaults.so"
    monkeypatch.setattr(front, "build_interposer", lambda **_: Path("/my cache/libcudafaults.so"))
    with pytest.raises(BuildError, match="allows neither spaces nor colons"):
        interposer_environment(("slow",), {}, {})


def test_a_run_on_gpus_needs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "build_interposer", lambda **_: Path("/cache/libcudafaults.so"))
    monkeypatch.delenv(PRELOAD, raising=False)
    assert add_interposer(None, cuda.BACKEND, (), inline=True) is None
    assert add_interposer(None, cuda.BACKEND, ("slow",), inline=False) == ProvidedDevice(
        None,
        {},
        {"LD_PRELOAD": "/cache/libcudafaults.so", "CUDA_INJECT": "slow"},
    )
    with pytest.raises(InterposerError, match="leave out --isolation=none"):
        add_interposer(None, cuda.BACKEND, ("slow",), inline=True)


def test_a_run_on_the_simulated_cuda_has_it_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "build_interposer", lambda **_: Path("/cache/libcudafaults.so"))
    device = ProvidedDevice("operators.so", {"key": "k"}, {"LD_PRELOAD": "/cache/libcudart.so.13", "Y": "2"})
    found = add_interposer(device, simcuda.BACKEND, ("slow",), inline=True)
    assert found is not None
    assert found.library == "operators.so"
    assert found.variables["LD_PRELOAD"] == "/cache/libcudafaults.so:/cache/libcudart.so.13"
    assert add_interposer(device, soft.BACKEND, ("slow",), inline=True) is device


def test_a_process_without_it_may_not_run_cases() -> None:
    check_interposer({})
    with pytest.raises(InterposerError, match="CUDA_INJECT is 'slow', but the library that injects faults is not in"):
        check_interposer({"CUDA_INJECT": "slow"})
