"""`CUDA_VISIBLE_DEVICES` as torch reads it before the first use of CUDA, with NVML's names and numbers.

CUDA C++ Programming Guide, "CUDA Environment Variables": the entries are indices, or prefixes of UUIDs; entries after
an invalid one are not visible.
"""

from __future__ import annotations

from typing import Any

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
#: Prefixes of UUIDs, and the numbers of the devices that they match.
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
    """Other text may follow a number; a repeated entry leaves no device, and an invalid entry ends the list."""
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
    """A UUID prefix selects the only device that has it; a prefix of several devices or of none ends the list."""
    assert private.numbers_of(candidates, UUIDS) == numbers


def test_device_count_of_nvml_follows_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's count includes the devices that the variable leaves, by number or UUID; -1 means that CUDA must count."""
    torch.cuda.init()  # initializes with the devices of this process
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
    """NVML numbers all devices of the machine: a device's number is its entry in the variable, as number or UUID."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    names = private.nvml_uuids()
    for text in (str(len(names) - 1), names[-1]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        for given in (0, "cuda:0", torch.device("cuda", 0)):
            assert private.nvml_index(given) == len(names) - 1
        for wrong in (1, -1):
            with pytest.raises(RuntimeError, match=f"device {wrong} is not visible"):
                private.nvml_index(wrong)


def test_device_count_before_the_first_use_follows_the_variable_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first use of CUDA, the count follows CUDA_VISIBLE_DEVICES; if NVML cannot count, the runtime does."""
    private.before_first_use(monkeypatch)
    private.runtime_counts(monkeypatch, 7)
    for text, counted in (("0", 1), ("", 0), ("0", 1), ("MIG-none", 7), ("99", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert torch.cuda.device_count() == counted, f"CUDA_VISIBLE_DEVICES={text!r}"


def test_device_count_after_the_first_use_is_that_of_the_runtime_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first use, the runtime counts once: neither a later count nor the variable changes the number."""
    torch.cuda.init()
    private.count_anew(monkeypatch)
    private.runtime_counts(monkeypatch, 7)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert torch.cuda.device_count() == 7
    private.runtime_counts(monkeypatch, 5)
    assert torch.cuda.device_count() == 7


@pytest.mark.parametrize(("variable", "asks_nvml"), [(None, False), ("0", False), ("1", True)])
def test_is_available_asks_nvml_if_pytorch_nvml_based_cuda_check_is_1(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, asks_nvml: bool
) -> None:
    """`is_available` is True if the runtime finds a device; with PYTORCH_NVML_BASED_CUDA_CHECK=1, if NVML does."""
    private.before_first_use(monkeypatch)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", variable)
    for visible, runtime in (("", 1), ("0", 0), ("0", 3), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        private.runtime_counts(monkeypatch, runtime)
        assert torch.cuda.is_available() is (bool(visible) if asks_nvml else runtime > 0)


class Library:
    """NVML's library with these devices. The functions in `fails` return an error."""

    def __init__(self, uuids: list[str], fails: str = "") -> None:
        self.uuids, self.fails = uuids, fails

    def nvmlInit(self) -> int:  # noqa: N802
        return int(self.fails == "nvmlInit")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.uuids)
        return int(self.fails == "nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return int(self.fails == "nvmlDeviceGetHandleByIndex_v2")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:  # noqa: N802
        name = self.uuids[handle.value - 1].encode("ascii")
        assert size > len(name)
        text.value = name
        return int(self.fails == "nvmlDeviceGetUUID")


#: The variable, the number of devices, and NVML's number of the first of them.
VISIBLE: list[tuple[str, int, int]] = [
    ("0,1,2", 3, 0),
    ("2,0", 2, 2),
    ("1,3,0", 1, 1),
    ("GPU-12", 1, 2),
    ("GPU-12345678,GPU-9e8d35e3-1", 2, 2),
    ("GPU-9e8d35e3-2,GPU-9e8d35e3,GPU-12", 1, 1),
]


@pytest.mark.parametrize(("text", "counted", "first"), VISIBLE, ids=str)
def test_device_count_and_index_of_nvml_with_three_devices(
    monkeypatch: pytest.MonkeyPatch, text: str, counted: int, first: int
) -> None:
    """The count is that of NVML's devices that the variable leaves, and the index of each is NVML's."""
    monkeypatch.setattr("ctypes.CDLL", lambda _: Library(UUIDS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert private.nvml_uuids() == UUIDS
    assert private.nvml_count() == counted
    assert private.nvml_index(0) == first


@pytest.mark.filterwarnings("ignore:Can't:UserWarning")
@pytest.mark.parametrize(
    ("fails", "by_number"),
    [
        ("nvmlInit", -1),
        ("nvmlDeviceGetCount_v2", -1),
        ("nvmlDeviceGetHandleByIndex_v2", 2),
        ("nvmlDeviceGetUUID", 2),
    ],
)
def test_device_count_of_nvml_that_fails_is_left_to_the_runtime(
    monkeypatch: pytest.MonkeyPatch, fails: str, by_number: int
) -> None:
    """If a function of NVML fails, the count is -1, so that the runtime counts, and an index by UUID raises.

    Numbers need no UUIDs.
    """
    monkeypatch.setattr("ctypes.CDLL", lambda _: Library(UUIDS, fails))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert private.nvml_count() == by_number
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(UUIDS))
    assert private.nvml_count() == -1
    with pytest.raises(RuntimeError, match="UUIDs"):
        private.nvml_index(0)


def test_device_count_without_nvml_is_left_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML's library, the count is -1, unless the variable leaves no device."""

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    for text, counted in (("0", -1), ("GPU-12", -1), ("", 0), ("none", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert private.nvml_count() == counted
