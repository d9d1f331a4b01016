"""The backends of AMD's and Intel's GPUs, with fakes of their interfaces. Neither has ever run on such a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.backends import cuda, rocm, xpu
from harness.backends.table import BACKENDS
from harness.devices import census
from harness.devices.capabilities import detect_capabilities
from harness.devices.device import DeviceError, masks_for


class FakeModule:
    """A fake of ``torch.cuda`` of a HIP build, or of ``torch.xpu``: two GPUs of 64 GiB."""

    def __init__(self) -> None:
        self.seeded: list[int] = []
        self.synchronized: list[int] = []
        self.used = False

    def device_count(self) -> int:
        return 2

    def is_initialized(self) -> bool:
        return self.used

    def manual_seed_all(self, seed: int) -> None:
        self.seeded.append(seed)

    def synchronize(self, index: int) -> None:
        self.synchronized.append(index)

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="a GPU", total_memory=64 << 30, uuid=f"00000000-{index}")


def fake_torch(kind: str, *, hip: str | None) -> Any:
    """A fake of torch that is built for one of them."""
    torch = ModuleType("torch")
    served = SimpleNamespace(
        current_accelerator=lambda: SimpleNamespace(type=kind),
        memory_stats=lambda _: {"allocated_bytes.all.current": 4096},
    )
    vars(torch).update(
        {kind: FakeModule(), "accelerator": served, "version": SimpleNamespace(hip=hip)},
    )
    return torch


def test_rocm_speaks_of_torch_cuda_in_a_build_for_hip_only() -> None:
    torch = fake_torch("cuda", hip="6.4.1")
    backend = rocm.BACKEND
    assert backend.device_count(torch) == 2
    assert not backend.is_initialized(torch)
    torch.cuda.used = True
    assert backend.is_initialized(torch)
    assert not cuda.BACKEND.is_initialized(torch), "NVML and the runtime of CUDA are not asked"
    backend.seed(torch, 7)
    backend.synchronize(torch, 1)
    assert (torch.cuda.seeded, torch.cuda.synchronized) == ([7], [1])
    of_cuda = fake_torch("cuda", hip=None)
    of_cuda.cuda.used = True
    assert backend.device_count(of_cuda) == 0
    assert not backend.is_initialized(of_cuda)


def test_xpu_is_what_torch_xpu_says() -> None:
    torch = fake_torch("xpu", hip=None)
    assert xpu.BACKEND.device_count(torch) == 2
    assert xpu.BACKEND.properties(torch, 1) == {
        "name": "a GPU",
        "total_memory": 64 << 30,
        "uuid": "00000000-1",
    }
    counters = xpu.BACKEND.counters()
    assert counters is not None
    read = counters.read(torch, {}, full=False)
    assert read["device_allocated[1]"] == 4096


def _census(name: str, uuid: bool, mask: str = "works") -> dict[str, Any]:
    devices = [{"name": name, "uuid": f"u{index}" if uuid else None, "memory": 64 << 30} for index in range(2)]
    observed = {"accelerator_graphs": False, "asynchronous": None, "sparse": True, "process_groups": True}
    return {"devices": devices, "notes": [], "touched": "", "mask": mask, "observed": observed}


@pytest.mark.parametrize(
    ("kind", "mask", "outer", "uuids", "entries"),
    [
        ("rocm", "HIP_VISIBLE_DEVICES", None, ["ROCM-u0", "ROCM-u1"], ["0", "1"]),
        ("rocm", "HIP_VISIBLE_DEVICES", "2,5", ["ROCM-u0", "ROCM-u1"], ["2", "5"]),
        ("xpu", "ZE_AFFINITY_MASK", "0.0,0.1", ["XPU-0.0", "XPU-0.1"], ["0.0", "0.1"]),
    ],
)
def test_a_worker_gets_an_entry_of_the_outer_mask(
    monkeypatch: pytest.MonkeyPatch, kind: str, mask: str, outer: str | None, uuids: list[str], entries: list[str]
) -> None:
    monkeypatch.setattr(census, "_ask", lambda *_: _census("a GPU", uuid=kind == "rocm"))
    environ: dict[str, str] = {} if outer is None else {mask: outer}
    inventory = census.inventory(BACKENDS[kind], environ)
    assert [device.uuid for device in inventory.devices] == uuids
    assert [masks_for([device])[mask] for device in inventory.devices] == entries
    assert masks_for(inventory.devices)[mask] == ",".join(entries)
    assert masks_for(inventory.devices[:1])["CUDA_VISIBLE_DEVICES"] == ""
    assert inventory.separate == inventory.devices
    assert json.loads(environ[census.VARIABLE])["key"] == [kind, outer, *[None] * len(BACKENDS[kind].variables)]


def test_capabilities_of_an_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_ask", lambda *_: _census("AMD Instinct MI300X", uuid=True))
    inventory = census.inventory(rocm.BACKEND, {})
    found = detect_capabilities(inventory, inventory.devices[0])
    values: Mapping[str, Any] = {
        name: found[name]
        for name in ("device", "accelerator", "silicon", "model", "memory", "devices", "cuda_graphs", "mig")
    }
    assert values == {
        "device": "rocm",
        "accelerator": True,
        "silicon": True,
        "model": "AMD Instinct MI300X",
        "memory": 64 << 30,
        "devices": 2,
        "cuda_graphs": True,
        "mig": False,
    }
    assert found.describe("compute_capability") == "absent (the device is an AMD GPU, not one of CUDA)"


def test_a_mask_that_does_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_ask", lambda *_: _census("a GPU", uuid=False, mask="1: 2"))
    with pytest.raises(DeviceError, match="the mask ZE_AFFINITY_MASK does nothing"):
        census.inventory(xpu.BACKEND, {})


@pytest.mark.acceptance
def test_this_machine_has_neither() -> None:
    """On a machine without such GPUs, the census of a CPU build of torch says so."""
    with pytest.raises(DeviceError, match="this machine has no such device: device_count is 0"):
        census.inventory(xpu.BACKEND, {})
