"""The simulated GPUs of an environment, and the devices of a run on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.backends import simcuda
from harness.controller import machine as chosen
from harness.devices import inventory as gpus
from harness.devices.device import Detected, DeviceError
from harness.sim.native.provider import MachineError
from harness.sim.simcuda import machine
from harness.sim.softdevice.build import CSRC
from tests.sim.simcuda.cuda_builds import pretend_build

_HEADER = Path(machine.__file__).with_name("csrc") / "include" / "simcuda_machine.h"
_AMOUNTS = CSRC / "core" / "amounts.h"


def uuid(index: int) -> str:
    return f"GPU-51ed0000-0000-4000-8000-{index:012d}"


@pytest.mark.parametrize(
    ("environ", "visible", "hidden", "memory"),
    [
        ({}, [0, 1], [], 2 << 30),
        ({"SIMCUDA_DEVICE_COUNT": " 3"}, [0, 1, 2], [], 2 << 30),
        ({"SIMCUDA_DEVICE_COUNT": "1", "SIMCUDA_DEVICE_MEMORY": "2097152"}, [0], [], 2 << 20),
        ({"SIMCUDA_DEVICE_MEMORY": "512MiB"}, [0, 1], [], 512 << 20),
        ({"SIMCUDA_DEVICE_MEMORY": "4096 KiB"}, [0, 1], [], 4 << 20),
        ({"SIMCUDA_DEVICE_MEMORY": "80GiB "}, [0, 1], [], 80 << 30),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1], [0], 2 << 30),
        ({"CUDA_VISIBLE_DEVICES": f"{uuid(1)},0"}, [1, 0], [], 2 << 30),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, [0], [1], 2 << 30),
    ],
)
def test_devices_of_the_environment(
    environ: dict[str, str], visible: list[int], hidden: list[int], memory: int
) -> None:
    found = machine.simulated_inventory(environ)
    assert [device.index for device in found.devices] == visible
    assert [device.index for device in found.hidden] == hidden
    assert found.accelerators == found.usable == found.devices
    assert found.gpus == ()
    for device in (*found.devices, *found.hidden):
        assert device.uuid == uuid(device.index or 0)
        assert (device.kind, device.name, device.memory) == ("simcuda", "Simulated H100 (no GPU)", memory)
        assert device.compute_capability == (9, 0)
    assert found.notes[0] == "simulated CUDA (no GPU): driver and NVML are simulated too"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SIMCUDA_DEVICE_COUNT", "", "expected a number from 1 to 64"),
        ("SIMCUDA_DEVICE_COUNT", "0", "expected a number from 1 to 64"),
        ("SIMCUDA_DEVICE_COUNT", "65", "expected a number from 1 to 64"),
        ("SIMCUDA_DEVICE_COUNT", "two", "expected a number from 1 to 64"),
        ("SIMCUDA_DEVICE_MEMORY", "", "at least 2 MiB"),
        ("SIMCUDA_DEVICE_MEMORY", "2097151", "at least 2 MiB"),
        ("SIMCUDA_DEVICE_MEMORY", "1GB", "at least 2 MiB, such as 268435456, 256MiB or 1GiB"),
        ("SIMCUDA_DEVICE_MEMORY", "4294967297GiB", "at least 2 MiB"),
        ("CUDA_VISIBLE_DEVICES", "", "hides every GPU; unset CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVICES", "2", "entry '2' is the index of no GPU"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1", "entry 'GPU-1' is the UUID of no device"),
        ("CUDA_VISIBLE_DEVICES", "0,0", "a second time, which hides every GPU"),
    ],
)
def test_an_invalid_variable_is_an_error_with_name_and_value(name: str, value: str, expected: str) -> None:
    with pytest.raises(MachineError) as caught:
        machine.simulated_inventory({name: value})
    assert str(caught.value).startswith(f"{name}={value!r}: ")
    assert expected in str(caught.value)


def test_the_run_and_the_runtime_agree_on_the_machine() -> None:
    """The libraries read the same variables themselves, and report the same values to their processes."""
    text = _HEADER.read_text(encoding="utf-8") + _AMOUNTS.read_text(encoding="utf-8")

    def constant(name: str) -> str:
        found = re.search(rf"\b{name} = (.*?)[;,]", text)
        assert found is not None, name
        return found[1].strip('"')

    (device, *_) = machine.simulated_devices({})
    assert constant("name") == device.name
    assert constant("default_count") == str(len(machine.simulated_devices({})))
    assert constant("default_memory") == "std::size_t{2} << 30"
    assert constant("least_memory") == "std::size_t{2} << 20"
    assert constant("driver_version") == machine.DRIVER
    assert (int(constant("compute_major")), int(constant("compute_minor"))) == device.compute_capability
    assert f'"{simcuda.BACKEND.uuid_prefixes[0]}%012d"' in text


def test_a_cpu_build_of_torch_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_build(monkeypatch, Detected(None, "torch 2.13.0+cpu is built without cuda"))
    with pytest.raises(DeviceError) as caught:
        chosen.inventory("simcuda", {})
    assert str(caught.value).startswith(
        "--device=simcuda: the simulated CUDA needs a CUDA build of torch, and torch 2.13.0+cpu is built without cuda: "
    )
    assert "pip install 'torch===2.13.0'" in str(caught.value)


def test_a_cuda_that_is_not_simulated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_build(monkeypatch, Detected((11, 8)))
    with pytest.raises(DeviceError, match="torch is built for CUDA 11; the simulated CUDA exists for CUDA 12 and 13"):
        chosen.inventory("simcuda", {})


def test_a_run_on_simulated_gpus_asks_no_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_build(monkeypatch, Detected((13, 0)))

    def discover(_: object) -> None:
        raise AssertionError("NVML was asked")

    monkeypatch.setattr(gpus, "discover_devices", discover)
    found = chosen.inventory("simcuda", {"SIMCUDA_DEVICE_COUNT": "8"})
    assert len(found.usable) == 8
    assert (found.driver, found.cuda_driver, found.nvml_error) == ("580.00", "13.0", None)
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(
        DeviceError, match=r"no C\+\+ compiler to build the simulated CUDA: /nonexistent/g\+\+ does not"
    ):
        chosen.inventory("simcuda", {})
