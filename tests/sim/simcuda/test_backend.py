"""The harness's view of a simulated GPU: UUID, requirements, capabilities, and the fork of a process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.backends import cuda, simcuda, simulation
from harness.backends.table import BACKENDS, backend_of, device_variables, labels
from harness.devices.capabilities import Capabilities, detect_capabilities
from harness.devices.device import CPU, Device, Inventory, masks_for
from harness.gating import requirements
from harness.sim.simcuda import machine
from harness.sim.softdevice import registration as soft
from tests.sim.simcuda.fake_runtime import fake_runtime, run_python

DEVICES = machine.simulated_devices({})
GPU = Device(uuid="GPU-a", kind="cuda", name="H200", index=0, memory=2**37, compute_capability=(9, 0))
SOFT = Device(uuid="SOFT-0", kind="soft", name="soft")


def capabilities(device: Device, *others: Device) -> Capabilities:
    return detect_capabilities(Inventory((device, *others)), device)


@pytest.mark.parametrize(
    ("uuid", "kind"),
    [
        (DEVICES[0].uuid, "simcuda"),
        (DEVICES[1].uuid, "simcuda"),
        ("GPU-51ed0000-1111-4000-8000-000000000000", "cuda"),
        ("GPU-a", "cuda"),
        ("MIG-a", "cuda"),
        ("SOFT-0", "soft"),
        ("cpu", "cpu"),
    ],
)
def test_a_uuid_tells_a_simulated_gpu_from_a_gpu(uuid: str, kind: str) -> None:
    assert backend_of(uuid) is BACKENDS[kind]


def test_reports_say_what_it_is() -> None:
    assert labels([device.uuid for device in DEVICES]) == "simulated CUDA (no GPU)"
    assert labels(["GPU-a"]) == ""


def test_variables_of_devices_are_named_once() -> None:
    assert sorted(device_variables()) == sorted({*device_variables()})
    assert {cuda.MASK, simcuda.COUNT, simcuda.MEMORY} <= {*device_variables()}


def test_an_executor_is_shown_its_devices_as_with_cuda() -> None:
    assert masks_for(DEVICES[1:]) == {"CUDA_VISIBLE_DEVICES": DEVICES[1].uuid}
    assert masks_for(DEVICES) == {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in DEVICES)}


@pytest.mark.parametrize(
    ("condition", "simulated", "gpu", "software", "cpu"),
    [
        ({"device": "cuda"}, True, True, False, False),
        ({"device": "simcuda"}, True, False, False, False),
        ({"not_": {"device": "cuda"}}, False, False, True, True),
        ({"not_": {"device": "soft"}}, True, True, False, True),
        ({"device": "cpu"}, True, True, True, True),
        ({"silicon": True}, False, True, False, False),
        ({"silicon": False}, True, False, True, True),
        ({"device": "cuda", "silicon": True}, False, True, False, False),
    ],
)
def test_a_case_for_cuda_runs_on_a_simulated_gpu(
    condition: dict[str, Any], simulated: bool, gpu: bool, software: bool, cpu: bool
) -> None:
    wanted = requirements.parse_requirements(condition)
    met = [requirements.first_unmet(wanted, capabilities(device)) is None for device in (DEVICES[0], GPU, SOFT, CPU)]
    assert met == [simulated, gpu, software, cpu]


@pytest.mark.parametrize(
    ("condition", "refused"),
    [
        ({"device": "cuda"}, True),
        ({"device": "simcuda"}, False),
        ({"device": "cpu"}, False),
        ({"memory": ">=1GiB"}, False),
        ({"device": "soft"}, False),  # unmet, and reported as such
    ],
)
def test_what_a_whole_run_claims_names_the_device_itself(condition: dict[str, Any], refused: bool) -> None:
    found = requirements.disguised_device(requirements.parse_requirements(condition), capabilities(DEVICES[0]))
    assert (found is not None) is refused
    if found is not None:
        assert found.text == f"device: wanted {condition['device']}, found simcuda"
    assert requirements.disguised_device(requirements.parse_requirements(condition), capabilities(GPU)) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device", "simcuda"),
        ("accelerator", "True"),
        ("silicon", "False (simulated CUDA (no GPU))"),
        ("model", "Simulated H100 (no GPU)"),
        ("devices", "2 (simcuda)"),
        ("memory", "2.0GiB"),
        ("free_memory", "2.0GiB (of a software device; each process has its own)"),
        ("compute_capability", "9.0"),
        ("peer_access", "True (simulated)"),
        ("peer_links", "none (simulated)"),
        ("nvlink", "False (simulated)"),
        ("fabric", "False (simulated)"),
        ("mig", "False"),
        ("bf16", "True"),
        ("cuda_graphs", "True"),
    ],
)
def test_its_capabilities_are_known_without_a_process(name: str, text: str) -> None:
    assert capabilities(*DEVICES).describe(name) == text


def test_one_device_has_no_peer() -> None:
    assert capabilities(DEVICES[0]).describe("peer_access") == "False (there is only one gpu)"


def test_silicon_says_why_not() -> None:
    assert capabilities(GPU).describe("silicon") == "True"
    assert capabilities(SOFT).describe("silicon") == f"False ({soft.BACKEND.no_gpu})"
    assert capabilities(CPU).describe("silicon") == "False (the device is the cpu)"


def test_a_process_has_either_gpus_or_simulated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the meters and the check for sticky errors would query torch twice."""
    torch = cast(Any, SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    known = [backend for kind, backend in BACKENDS.items() if kind in ("cuda", "simcuda")]
    assert [each.kind for each in known if each.is_initialized(torch)] == ["cuda"]
    monkeypatch.setattr(simulation, "simulated_runtime", lambda: SimpleNamespace(simcudaThreadCount=lambda: 3))
    assert [each.kind for each in known if each.is_initialized(torch)] == ["simcuda"]
    assert simcuda.BACKEND.own_threads(torch) == 3
    torch.cuda.is_initialized = lambda: False
    assert [each.kind for each in known if each.is_initialized(torch)] == []


def test_the_guard_asks_the_simulated_runtime(tmp_path: Path) -> None:
    script = "from harness.devices import guard; print(guard.cuda_in_use())"
    for initialized, answer in ((False, "None\n"), (True, "simulated CUDA (no GPU) is initialised\n")):
        folder = tmp_path / str(initialized)
        folder.mkdir()
        done = run_python(script, {"LD_PRELOAD": str(fake_runtime(folder, initialized=initialized))})
        assert (done.stdout, done.stderr) == (answer, "")
