"""The software devices of an environment, and the devices of a run."""

from __future__ import annotations

import pytest

from harness.controller import machine as chosen
from harness.devices import inventory as gpus
from harness.devices.device import CPU, Device, DeviceError, Inventory
from harness.sim.native.provider import MachineError
from harness.sim.softdevice import registration as soft
from harness.sim.softdevice.machine import software_devices


@pytest.mark.parametrize(
    ("environ", "visible", "hidden", "memory"),
    [
        ({}, ["SOFT-0", "SOFT-1"], [], 1 << 30),
        ({"SOFT_DEVICE_COUNT": " 3"}, ["SOFT-0", "SOFT-1", "SOFT-2"], [], 1 << 30),
        ({"SOFT_DEVICE_COUNT": "1", "SOFT_DEVICE_MEMORY": "2097152"}, ["SOFT-0"], [], 1 << 21),
        ({"SOFT_DEVICE_MEMORY": "512MiB"}, ["SOFT-0", "SOFT-1"], [], 512 << 20),
        ({"SOFT_DEVICE_MEMORY": "4096 KiB"}, ["SOFT-0", "SOFT-1"], [], 4 << 20),
        ({"SOFT_DEVICE_MEMORY": "3GiB "}, ["SOFT-0", "SOFT-1"], [], 3 << 30),
        ({"SOFT_VISIBLE_DEVICES": "1"}, ["SOFT-1"], ["SOFT-0"], 1 << 30),
        ({"SOFT_VISIBLE_DEVICES": "SOFT-1, 00"}, ["SOFT-1", "SOFT-0"], [], 1 << 30),
        ({"SOFT_VISIBLE_DEVICES": " "}, [], ["SOFT-0", "SOFT-1"], 1 << 30),
    ],
)
def test_devices_of_the_environment(
    environ: dict[str, str], visible: list[str], hidden: list[str], memory: int
) -> None:
    seen, others = software_devices(environ)
    assert ([device.uuid for device in seen], [device.uuid for device in others]) == (visible, hidden)
    assert all(
        (device.kind, device.name, device.memory) == ("soft", soft.BACKEND.label, memory) for device in (*seen, *others)
    )
    assert all(device.uuid == f"SOFT-{device.index}" for device in (*seen, *others))


@pytest.mark.parametrize(("value", "asynchronous"), [(None, True), ("0", True), (" 1", False)])
def test_a_synchronous_device_says_so(value: str | None, asynchronous: bool) -> None:
    seen, _ = software_devices({} if value is None else {"SOFT_SYNCHRONOUS": value})
    assert [device.observed["asynchronous"] for device in seen] == [asynchronous] * 2


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SOFT_SYNCHRONOUS", "yes", "expected 0 or 1"),
        ("SOFT_DEVICE_COUNT", "", "a number from 1 to 64"),
        ("SOFT_DEVICE_COUNT", "0", "a number from 1 to 64"),
        ("SOFT_DEVICE_COUNT", "65", "a number from 1 to 64"),
        ("SOFT_DEVICE_COUNT", "-1", "a number from 1 to 64"),
        ("SOFT_DEVICE_COUNT", "two", "a number from 1 to 64"),
        ("SOFT_DEVICE_MEMORY", "", "at least 2 MiB"),
        ("SOFT_DEVICE_MEMORY", "2097151", "at least 2 MiB"),
        ("SOFT_DEVICE_MEMORY", "1GB", "at least 2 MiB, such as 268435456, 256MiB or 1GiB"),
        ("SOFT_DEVICE_MEMORY", "1.5GiB", "at least 2 MiB"),
        ("SOFT_DEVICE_MEMORY", "8589934592GiB", "at least 2 MiB"),
        ("SOFT_DEVICE_MEMORY", "4611686018427387905", "at least 2 MiB"),
        ("SOFT_VISIBLE_DEVICES", "2", "'2' is not a device, expected 0 to 1, or SOFT-0 to SOFT-1"),
        ("SOFT_VISIBLE_DEVICES", "GPU-1", "'GPU-1' is not a device"),
        ("SOFT_VISIBLE_DEVICES", "0,", "'' is not a device"),
        ("SOFT_VISIBLE_DEVICES", "0,SOFT-0", "'SOFT-0' is SOFT-0 again"),
    ],
)
def test_an_invalid_variable_is_an_error_with_name_and_value(name: str, value: str, expected: str) -> None:
    with pytest.raises(MachineError) as caught:
        software_devices({name: value})
    assert str(caught.value).startswith(f"{name}={value!r}: ")
    assert expected in str(caught.value)


def test_a_run_on_software_devices_has_no_others() -> None:
    found = chosen.inventory("soft", {"SOFT_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"})
    assert [device.uuid for device in found.usable] == ["SOFT-1"]
    assert [device.uuid for device in found.hidden] == ["SOFT-0"]
    assert found.accelerators == found.devices
    assert found.gpus == ()
    assert found.nvml_error == "not used: the run is on software devices"


def test_software_devices_are_no_gpus_and_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="SOFT_VISIBLE_DEVICES='' hides all software devices"):
        chosen.inventory("soft", {"SOFT_VISIBLE_DEVICES": ""})
    with pytest.raises(DeviceError, match="SOFT_INJECT is set: unset it and use --inject"):
        chosen.inventory("soft", {"SOFT_INJECT": "slow"})
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler to build .*: /nonexistent/g\+\+ does not start"):
        chosen.inventory("soft", {})


GPU = Device(uuid="GPU-1", kind="cuda", name="H200", index=0)
LOST = Device(uuid="nvml:1", kind="cuda", name="unknown GPU", index=1, fault="handle: GPU is lost")


def test_a_required_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Inventory((GPU,))
    seen: list[dict[str, str]] = []

    def discover(environ: dict[str, str]) -> Inventory:
        seen.append(environ)
        return found

    monkeypatch.setattr(gpus, "discover_devices", discover)
    assert chosen.inventory("cuda", {}) is found
    assert chosen.inventory("auto", {"A": "b"}) is found
    assert chosen.inventory("cpu", {"CUDA_VISIBLE_DEVICES": "0"}) is found
    assert seen == [{}, {"A": "b"}, {"CUDA_VISIBLE_DEVICES": ""}]
    for found, why in (
        (Inventory((CPU,), nvml_error="NVML does not answer"), r"\(NVML does not answer\)"),
        (Inventory((LOST, CPU), hidden=(GPU,)), r"nvml:1: handle: GPU is lost; 1 hidden by CUDA_VISIBLE_DEVICES"),
        (Inventory((CPU,)), "NVML finds none"),
    ):
        assert chosen.inventory("auto", {}) is found
        with pytest.raises(DeviceError, match=f"--device=cuda: there is no usable GPU .*{why}"):
            chosen.inventory("cuda", {})
