"""The inventory, through the real pynvml: of this machine, and with a fake NVML in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.devices.device import CPU, Device, Inventory
from harness.devices.inventory import discover_devices
from tests import fake_nvml

_ASK = """
import json, sys
from dataclasses import asdict
from harness.devices.inventory import discover_devices
inventory = discover_devices()
print(json.dumps({**asdict(inventory), "torch": "torch" in sys.modules}))
"""


def run_python(script: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def discover_with(environ: dict[str, str]) -> Inventory:
    """The result of `discover_devices` in a new process with `environ`."""
    answer: dict[str, Any] = json.loads(run_python(_ASK, environ))
    assert answer.pop("torch") is False
    return Inventory(
        devices=tuple(_device(values) for values in answer.pop("devices")),
        hidden=tuple(_device(values) for values in answer.pop("hidden")),
        notes=tuple(answer.pop("notes")),
        **answer,
    )


def _device(values: dict[str, Any]) -> Device:
    capability = values.pop("compute_capability")
    return Device(**values, compute_capability=None if capability is None else tuple(capability))


def gpu(index: int) -> str:
    return f"GPU-{f'{index:x}' * 4}0000-0000-4000-8000-000000000000"


def mig(index: int, instance: int) -> str:
    return f"MIG-{f'{index:x}' * 4}0000-0000-4000-8000-00000000000{instance}"


def test_a_healthy_gpu_is_read_whole(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1))
    assert found == Inventory(
        devices=(
            Device(
                uuid=gpu(0),
                kind="cuda",
                name="Fake GPU 80GB",
                index=0,
                memory=80 * 2**30,
                compute_capability=(9, 0),
                pci_bus_id="00000000:10:00.0",
                ecc=True,
            ),
        ),
        driver="570.86.15",
        cuda_driver="12.8",
    )


def test_a_machine_with_eight_gpus_of_every_kind(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, mig=[3], lost=[5], no_ecc=[6], other=[7]))
    rows = [(device.uuid, device.index, device.mig_parent, device.ecc, device.fault) for device in found.devices]
    assert rows == [
        (gpu(0), 0, None, True, None),
        (gpu(1), 1, None, False, None),
        (gpu(2), 2, None, True, None),
        (mig(3, 1), 3, gpu(3), False, None),
        (mig(3, 2), 3, gpu(3), False, None),
        (gpu(4), 4, None, True, None),
        (gpu(5), 5, None, None, "name: GPU is lost"),
        (gpu(6), 6, None, None, None),
        (gpu(7), 7, None, False, None),
    ]
    instance = found.devices[3]
    assert (instance.name, instance.memory) == ("Fake GPU 80GB MIG 1g.10gb", 10 * 2**30)
    assert (instance.compute_capability, instance.pci_bus_id) == ((9, 0), "00000000:13:00.0")
    assert (found.devices[8].name, found.devices[8].memory) == ("Fake GPU 24GB", 24 * 2**30)
    assert len(found.gpus) == 8
    assert found.usable == found.gpus
    assert (found.hidden, found.notes, found.nvml_error) == ((), (), None)


def test_a_gpu_lost_before_it_is_named_still_has_an_entry(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=2, gone=[0]))
    assert found.devices[0] == Device(
        uuid="nvml:0", kind="cuda", name="unknown GPU", index=0, fault="handle: GPU is lost"
    )
    assert [device.uuid for device in found.gpus] == [gpu(1)]


def test_the_cpu_is_used_if_every_gpu_is_at_fault(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=2, lost=[0, 1]))
    assert [device.uuid for device in found.devices] == [gpu(0), gpu(1), "cpu"]
    assert found.gpus == ()
    assert found.usable == (CPU,)


def test_mig_mode_without_instances_is_a_fault(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=2, mig=[1], FAKE_NVML_SLICES="0"))
    assert [device.uuid for device in found.gpus] == [gpu(0)]
    assert found.devices[1].uuid == gpu(1)
    assert found.devices[1].fault is not None
    assert "there is no instance" in found.devices[1].fault


def test_a_lost_instance_does_not_affect_the_others(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, mig=[0], FAKE_NVML_LOST_SLICES="1"))
    assert [(device.uuid, device.mig_parent, device.fault) for device in found.devices] == [
        (mig(0, 1), gpu(0), "name: GPU is lost"),
        (mig(0, 2), gpu(0), None),
    ]


def test_an_instance_without_a_handle_is_a_fault_of_its_gpu(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, mig=[0], FAKE_NVML_GONE_SLICES="1"))
    assert [(device.uuid, device.mig_parent, device.fault) for device in found.devices] == [
        (mig(0, 2), gpu(0), None),
        (gpu(0), None, "MIG instance 1: GPU is lost"),
    ]


def test_no_gpu_at_all(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=0))
    assert found == Inventory(devices=(CPU,), driver="570.86.15", cuda_driver="12.8")


@pytest.mark.parametrize(
    ("mask", "devices", "hidden"),
    [
        ("1", [gpu(1)], [gpu(0), mig(2, 1), mig(2, 2)]),
        (f"{mig(2, 2)},0", [mig(2, 2), gpu(0)], [gpu(1), mig(2, 1)]),
        ("GPU-1", [gpu(1)], [gpu(0), mig(2, 1), mig(2, 2)]),
        ("", ["cpu"], [gpu(0), gpu(1), mig(2, 1), mig(2, 2)]),
    ],
)
def test_the_outer_mask_is_respected(nvml_folder: Path, mask: str, devices: list[str], hidden: list[str]) -> None:
    environ = fake_nvml.environment(nvml_folder, gpus=3, mig=[2])
    found = discover_with({**environ, "CUDA_VISIBLE_DEVICES": mask})
    assert [device.uuid for device in found.devices] == devices
    assert [device.uuid for device in found.hidden] == hidden


def test_a_given_environment_replaces_that_of_the_process(nvml_folder: Path) -> None:
    script = _ASK.replace("discover_devices()", "discover_devices({'CUDA_VISIBLE_DEVICES': '1'})")
    environ = {**fake_nvml.environment(nvml_folder, gpus=2), "CUDA_VISIBLE_DEVICES": "0"}
    assert [device["uuid"] for device in json.loads(run_python(script, environ))["devices"]] == [gpu(1)]


def test_nvml_is_started_once_and_shut_down(nvml_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    discover_with(fake_nvml.environment(nvml_folder, lost=[1], FAKE_NVML_LOG=str(log)))
    calls = log.read_text().splitlines()
    assert (calls[0], calls[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")
    assert (calls.count("nvmlInitWithFlags"), calls.count("nvmlShutdown")) == (1, 1)


@pytest.mark.parametrize(
    ("variable", "status", "error", "shut_down"),
    [
        ("FAKE_NVML_INIT", "9", "NVML does not answer: Driver Not Loaded", 0),
        ("FAKE_NVML_INIT", "18", "NVML does not answer: RM has detected an NVML/RM version mismatch.", 0),
        ("FAKE_NVML_INIT", "998", "NVML does not answer: Fake\ufffd[31m error", 0),
        ("FAKE_NVML_COUNT", "999", "NVML does not answer: Unknown Error", 1),
    ],
)
def test_an_nvml_that_fails_leaves_the_cpu(
    nvml_folder: Path, tmp_path: Path, variable: str, status: str, error: str, shut_down: int
) -> None:
    log = tmp_path / "calls"
    environ = fake_nvml.environment(nvml_folder, FAKE_NVML_LOG=str(log))
    assert discover_with({**environ, variable: status}) == Inventory(devices=(CPU,), nvml_error=error)
    assert log.read_text().splitlines().count("nvmlShutdown") == shut_down


def test_clocks_and_the_limit_of_power_are_read_where_the_gpu_has_them(nvml_folder: Path, tmp_path: Path) -> None:
    state = fake_nvml.State(tmp_path / "gpus")
    state.set(0, graphics_clock=1980, memory_clock=2619, power_limit=699_600)
    state.set(1, nvmlDeviceGetApplicationsClock=999, power_limit=350_000)
    first, second, third = discover_with(fake_nvml.environment(nvml_folder, gpus=3, state=state)).devices
    assert (first.graphics_clock, first.memory_clock, first.power_limit) == (1980, 2619, 700)
    assert (second.graphics_clock, second.memory_clock, second.power_limit, second.fault) == (None, None, 350, None)
    assert (third.graphics_clock, third.memory_clock, third.power_limit, third.fault) == (None, None, None, None)


def test_names_from_the_driver_are_made_printable(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_NAME="Fake\x1b[31m\nGPU é"))
    assert found.devices[0].name == "Fake\ufffd[31m\ufffdGPU é"


def test_a_name_that_is_not_utf_8_is_a_fault(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_NAME="Fake \udcff"))
    assert found.devices[0].fault == "name: NVML's text is not utf-8 (invalid start byte)"


@pytest.mark.parametrize("uuid", ["GPU-", "0", "GPU-a,GPU-b", "cpu"])
def test_a_uuid_that_is_not_valid_in_a_mask_is_a_fault(nvml_folder: Path, uuid: str) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_UUID=uuid))
    assert found.devices[0].uuid == "nvml:0"
    assert found.devices[0].fault == f"uuid: {uuid!r} is not of the form GPU-… or MIG-…"


def test_a_gpu_that_has_no_uuid_is_at_fault(nvml_folder: Path) -> None:
    found = discover_with(fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_UUID="none"))
    assert found.devices[0].fault == "uuid: NVML has none"
    assert found.gpus == ()


def test_a_machine_without_nvml_has_the_cpu(tmp_path: Path) -> None:
    # This invalid library is found before a real one, so the test also works on machines with a driver.
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    found = discover_with(fake_nvml.environment(tmp_path))
    assert found == Inventory(devices=(CPU,), nvml_error="NVML does not answer: NVML Shared Library Not Found")


def test_this_machine_as_it_is() -> None:
    found = discover_devices()
    assert len({device.uuid for device in (*found.devices, *found.hidden)}) == len(found.devices) + len(found.hidden)
    assert found.usable
    assert (CPU in found.devices) == (not found.gpus)
    assert (found.driver is None) == (found.nvml_error is not None)


def test_a_driver_that_hangs_is_an_error_of_nvml_after_a_time(nvml_folder: Path) -> None:
    shorter = "from harness.devices import call_thread\ncall_thread.NVML_LIMIT = 0.2\n"
    environ = fake_nvml.environment(nvml_folder, gpus=2) | {"FAKE_NVML_HANG": "nvmlSystemGetDriverVersion"}
    answer: dict[str, Any] = json.loads(run_python(shorter + _ASK, environ))
    assert answer["nvml_error"] == "NVML does not answer: no answer within 0.2 s"
    assert [device["uuid"] for device in answer["devices"]] == ["cpu"]
