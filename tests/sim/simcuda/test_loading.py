"""How processes load the simulated CUDA, and that no other process does."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from harness.sim.simcuda import autoload, build
from harness.sim.simcuda.build import SimcudaLibraries, SimcudaLoadError
from tests.sim.simcuda.fake_runtime import fake_runtime, run_python

pytestmark = pytest.mark.acceptance

_ROOT = Path(__file__).parents[3]
BUILT = SimcudaLibraries(
    Path("/c"), (Path("/c/libcudart.so.13"), Path("/c/libcuda.so.1")), Path("/c/operators.so"), 13, Path("/kit")
)


def test_the_entry_point_loads_the_module() -> None:
    declared = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    entry = importlib.metadata.EntryPoint("simcuda", declared["torch.backends"]["simcuda"], "torch.backends")
    assert entry.load() is autoload.load


def test_a_process_without_the_variable_imports_and_loads_nothing() -> None:
    script = (
        "import sys; from harness.sim.simcuda.autoload import load, loaded_operators; load(); "
        "print(loaded_operators(), "
        "*sorted(name for name in sys.modules if name.startswith(('harness', 'torch', 'ctypes'))))"
    )
    done = run_python(script, {autoload.VARIABLE: ""})
    assert done.stdout.split() == [
        "None",
        "harness",
        "harness.sim",
        "harness.sim.simcuda",
        "harness.sim.simcuda.autoload",
    ], done.stderr


def test_operators_are_not_loaded_beside_another_runtime() -> None:
    done = run_python("from harness.sim.simcuda.autoload import load; load()", {autoload.VARIABLE: "/c/operators.so"})
    assert "RuntimeError: SIMCUDA_OPERATORS is set, but the CUDA runtime of this process is not that of" in done.stderr


def test_operators_are_loaded_once(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    script = (
        "import ctypes\nfrom harness.sim.simcuda import autoload, build\nautoload.load()\nautoload.load()\n"
        f"build.check_simcuda_loaded({str(runtime)!r})\n"
        "print(autoload.loaded_operators(), ctypes.CDLL(None).simcuda_installed())"
    )
    done = run_python(script, {"LD_PRELOAD": str(runtime), autoload.VARIABLE: str(runtime)})
    assert done.stdout.strip() == f"{runtime} 1", done.stderr


def test_operators_that_torch_does_not_take_are_an_error(tmp_path: Path) -> None:
    runtime = str(fake_runtime(tmp_path, installs=False))
    script = "from harness.sim.simcuda.autoload import load; load()"
    done = run_python(script, {"LD_PRELOAD": runtime, autoload.VARIABLE: runtime})
    assert (
        f"RuntimeError: the operators of the simulated CUDA in {runtime!r} cannot be registered with this torch"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("outer", "preload"),
    [
        ({}, "/c/libcudart.so.13:/c/libcuda.so.1"),
        ({"LD_PRELOAD": ""}, "/c/libcudart.so.13:/c/libcuda.so.1"),
        ({"LD_PRELOAD": "/x/jemalloc.so"}, "/c/libcudart.so.13:/c/libcuda.so.1:/x/jemalloc.so"),
    ],
)
def test_what_a_process_is_started_with(
    outer: dict[str, str], preload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    nvrtc.parent.mkdir(parents=True)
    nvrtc.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert build.simcuda_environment(BUILT, outer) == {
        "CUDA_HOME": "/kit",
        "LD_PRELOAD": preload,
        "PYTORCH_KERNEL_CACHE_PATH": "/kit/torch",
        "SIMCUDA_NVRTC": str(nvrtc),
        "SIMCUDA_OPERATORS": "/c/operators.so",
        "SIMCUDA_TOOLKIT": "/kit",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "TORCH_DISABLE_NATIVE_JIT": "1",
        "TRITON_LIBCUDA_PATH": "/c",
    }


def test_a_process_without_it_is_found(tmp_path: Path) -> None:
    with pytest.raises(SimcudaLoadError, match="the simulated CUDA is not in this process: LD_PRELOAD is None"):
        build.check_simcuda_loaded("/c/operators.so")
    script = "import torch\nfrom harness.sim.simcuda import build\nbuild.check_simcuda_loaded('/c/operators.so')"
    done = run_python(script, {"LD_PRELOAD": str(fake_runtime(tmp_path))})
    assert "torch found no entry point 'simcuda' in the group 'torch.backends'; install the harness" in done.stderr


def test_a_pytest_process_that_runs_cases_itself_loads_it_before_torch(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    wanted = {"LD_PRELOAD": str(runtime), "A": "b"}
    script = (
        "import os\nfrom harness.backends import simulation\nfrom harness.sim.simcuda import build\n"
        f"build.load_into_this_process({wanted!r})\n"
        "print(simulation.simulated_runtime() is not None, os.environ['LD_PRELOAD'], os.environ['A'])"
    )
    assert run_python(script, {}).stdout.split() == ["True", str(runtime), "b"]
    done = run_python("import torch\n" + script, {})
    assert "cannot be loaded into a process that has imported torch" in done.stderr
    done = run_python(script.replace(str(runtime), "/c/none.so"), {})
    assert "'/c/none.so' cannot be loaded" in done.stderr
