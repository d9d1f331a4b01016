"""`CUDA_VISIBLE_DEVICES` as torch reads it before the first use of CUDA, with NVML's names and numbers.

CUDA C++ Programming Guide, "CUDA Environment Variables": indices, or beginnings of UUIDs; what follows an invalid entry
is not visible.
"""

from __future__ import annotations

import pytest
import torch

from . import _torch_private as private

pytestmark = pytest.mark.requires(device="cuda", torch=">=2.13")

#: The variable, and the entries that count.
ENTRIES: list[tuple[str, list[int] | list[str]]] = [
    ("", []),
    ("0", [0]),
    ("0,1", [0, 1]),
    (" 1, 0", [1, 0]),
    ("1gpu2,2ampere", [1, 2]),
    ("10", [10]),
    ("+1,2", [1, 2]),
    ("0,0", []),
    ("2,1,2", []),
    ("0,-1,1", [0]),
    ("-1", []),
    ("0,none,1", [0]),
    ("0,,1", [0]),
    ("GPU-a", ["GPU-a"]),
    ("GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
    ("GPU-a,GPU-a", []),
    ("GPU-a,MIG-b,GPU-c", ["GPU-a"]),
    ("GPU-a,1", ["GPU-a"]),
    ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
    ("MIG-a,GPU-b", ["MIG-a"]),
]
UUIDS = ["GPU-9e8d35e3-1", "GPU-9e8d35e3-2", "GPU-12345678-1"]
#: Beginnings of UUIDs, and the numbers of the devices that they mean.
BEGINNINGS: list[tuple[list[str], list[int]]] = [
    (["GPU-9e8d35e3-1"], [0]),
    (["GPU-12"], [2]),
    (["GPU-12345678-1", "GPU-9e8d35e3-1"], [2, 0]),
    (["GPU-9e8d35e3"], []),
    (["GPU-9e8d35e3-2", "GPU-9e8d35e3", "GPU-12"], [1]),
    (["GPU-47"], []),
    (["GPU-12", "GPU-47", "GPU-9e8d35e3-1"], [2]),
    (["GPU-12", "GPU-1234"], []),
]


@pytest.mark.parametrize(("text", "entries"), ENTRIES, ids=str)
def test_cuda_visible_devices_entries(
    monkeypatch: pytest.MonkeyPatch, text: str, entries: list[int] | list[str]
) -> None:
    """Numbers may be followed by other text; a repeated entry leaves no device, and an invalid one ends the list."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert private.visible_devices() == entries


def test_cuda_visible_devices_unset_means_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, all devices are visible, by their numbers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = private.visible_devices()
    assert found == list(range(len(found)))
    assert len(found) >= 16


@pytest.mark.parametrize(("candidates", "numbers"), BEGINNINGS, ids=str)
def test_cuda_visible_devices_uuids_may_be_cut_short(candidates: list[str], numbers: list[int]) -> None:
    """The beginning of a UUID means the only device that has it; one of several, or of none, ends the list."""
    assert private.numbers_of(candidates, UUIDS) == numbers


def test_device_count_of_nvml_follows_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's devices that the variable leaves are counted, by number and by UUID; -1 means that CUDA must be asked."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    count = private.nvml_count()
    names = private.nvml_uuids()
    assert count == len(names) == len(set(names))
    assert count >= torch.cuda.device_count() >= 1
    assert all(name.startswith("GPU-") and len(name) == 40 for name in names)
    own = {f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count())}
    assert own <= set(names)

    for text, counted in {
        "": 0,
        "-1": 0,
        "0": 1,
        "0,99": 1,
        "99": 0,
        f"0,{count}": 1,
        ",".join(map(str, range(count))): count,
        names[0]: 1,
        ",".join(names): count,
        ",".join(reversed(names)): count,
        f"{names[0]},GPU-none": 1,
        "GPU-none": 0,
        f"{names[0]},{names[0]}": 0,
        "MIG-none": -1,
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert private.nvml_count() == counted, f"CUDA_VISIBLE_DEVICES={text!r}"


def test_nvml_index_of_a_device_follows_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML numbers all devices of the machine: that of a device is the entry of the variable, by number or UUID."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    names = private.nvml_uuids()
    for text in (str(len(names) - 1), names[-1]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        for given in (0, "cuda:0", torch.device("cuda", 0)):
            assert private.nvml_index(given) == len(names) - 1
        for wrong in (1, -1):
            with pytest.raises(RuntimeError, match=f"device {wrong} is not visible"):
                private.nvml_index(wrong)
