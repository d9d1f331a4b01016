"""The vocabulary of capabilities, and what each of them is for one device of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.devices import host, software
from harness.devices.device import Device, Inventory
from harness.devices.finding import Finding, Value
from harness.devices.visibility import combinable


class Kind(StrEnum):
    """The type of a capability's values, which decides what a condition on it may say."""

    TEXT = "text"
    BOOL = "bool"
    COUNT = "count"
    BYTES = "bytes"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Capability:
    """An entry of the vocabulary. `text` says what it is, `source` where it is found, `choices` its only values."""

    kind: Kind
    text: str
    source: str
    find: Callable[[Inventory, Device], Finding]
    choices: tuple[str, ...] = ()


class Capabilities(Mapping[str, Value | None]):
    """The value of each capability of `VOCABULARY`, None when absent. Each is looked for when first asked for.

    Versions are tuples of ints and memory is in bytes. `finding` and `describe` tell why something is absent.
    """

    __slots__ = ("_findings", "_probes")

    def __init__(self, probes: Mapping[str, Callable[[], Finding]]) -> None:
        self._probes = dict(probes)
        self._findings: dict[str, Finding] = {}

    def finding(self, name: str) -> Finding:
        """The value of `name` and its detail; the same at every call. Raises KeyError for a name that is not here."""
        if name not in self._findings:
            self._findings[name] = self._probes[name]()
        return self._findings[name]

    def describe(self, name: str) -> str:
        """The finding in words: ``8.0GiB``, ``1 (cpu)``, ``absent (torch is not installed)``."""
        finding = self.finding(name)
        words = "absent" if finding.value is None else written(name, finding.value)
        return f"{words} ({finding.detail})" if finding.detail else words

    def __getitem__(self, name: str) -> Value | None:
        return self.finding(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._probes)

    def __len__(self) -> int:
        return len(self._probes)


def detect(inventory: Inventory, device: Device) -> Capabilities:
    """What a case finds that runs on `device`, one of the inventory's. Looks nothing up yet, so it costs nothing."""

    def probe(capability: Capability) -> Callable[[], Finding]:
        return lambda: capability.find(inventory, device)

    return Capabilities({name: probe(capability) for name, capability in VOCABULARY.items()})


def written(name: str, value: Value) -> str:
    """A value of capability `name` in words: ``2.13.0``, ``8.0GiB``, ``True``."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if VOCABULARY[name].kind is Kind.BYTES and isinstance(value, int):
        return size(value)
    return str(value)


def size(count: int) -> str:
    """A number of bytes in the largest binary unit that leaves a whole, to one decimal, rounded down.

    Down, so that a device of 11.96 GiB that fails ``>=12GiB`` does not claim to have 12.0.
    """
    unit, name = next(((u, n) for u, n in _UNITS if count >= u), (1, "B"))
    if unit == 1:
        return f"{count}B"
    tenths = count * 10 // unit
    return f"{tenths // 10}.{tenths % 10}{name}"


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _memory(_: Inventory, device: Device) -> Finding:
    if device.kind == "cpu":
        return Finding(host.memory(), "of the host")
    return Finding(device.memory, "" if device.memory is not None else "nvml does not tell it")


def _compute_capability(_: Inventory, device: Device) -> Finding:
    if device.kind == "cpu":
        return Finding(None, "the device is the cpu")
    return Finding(device.compute_capability, "" if device.compute_capability else "nvml does not tell it")


def _devices(inventory: Inventory, device: Device) -> Finding:
    if device.kind == "cpu":
        return Finding(1, "cpu")
    together = combinable(inventory.gpus)
    limit = ", for a process sees one mig instance only" if any(gpu.mig_parent for gpu in together) else ""
    return Finding(len(together), f"cuda{limit}")


def _device_count(inventory: Inventory, device: Device) -> Finding:
    return Finding(1 if device.kind == "cpu" else len(inventory.gpus), device.kind)


def _driver(version: str | None, inventory: Inventory) -> Finding:
    found = None if version is None else software.release(version)
    return Finding(found, "" if found else inventory.nvml_error or "nvml does not tell it")


def _ecc(_: Inventory, device: Device) -> Finding:
    if device.kind == "cpu":
        return Finding(None, "the device is the cpu")
    return Finding(device.ecc, "" if device.ecc is not None else "the device has no ecc mode")


def _cuda_graphs(_: Inventory, device: Device) -> Finding:
    return Finding(device.kind == "cuda", "" if device.kind == "cuda" else "the device is the cpu")


def _platform(_: Inventory, __: Device) -> Finding:
    return Finding(f"{sys.platform}-{os.uname().machine}")


# The order is that in which unmet requirements are told: what explains most comes first.
VOCABULARY: Mapping[str, Capability] = {
    "device": Capability(
        Kind.TEXT,
        "what the case runs on; the cpu is there on every machine",
        "the device leased to the worker",
        lambda _, device: Finding(device.kind),
        choices=("cuda", "cpu"),
    ),
    "devices": Capability(
        Kind.COUNT,
        "how many devices of its kind one case can be given together",
        "the inventory; a process can hold several GPUs, but one MIG instance only",
        _devices,
    ),
    "device_count": Capability(
        Kind.COUNT, "how many usable devices of the kind the machine has", "the inventory", _device_count
    ),
    "compute_capability": Capability(
        Kind.VERSION, "compute capability of the device, such as 9.0", "NVML", _compute_capability
    ),
    "memory": Capability(
        Kind.BYTES,
        "memory of the device in bytes, used or not",
        "NVML; for the cpu, the host's or its control group's limit",
        _memory,
    ),
    "mig": Capability(
        Kind.BOOL,
        "whether the device is a MIG instance",
        "NVML",
        lambda _, device: Finding(device.mig_parent is not None),
    ),
    "ecc": Capability(Kind.BOOL, "whether ECC is switched on for the device's memory", "NVML", _ecc),
    "cuda_graphs": Capability(
        Kind.BOOL, "whether CUDA graphs can be captured and replayed", "the kind of the device", _cuda_graphs
    ),
    "nvml": Capability(
        Kind.BOOL,
        "whether NVML answers",
        "nvmlInit",
        lambda inventory, _: Finding(inventory.nvml_error is None, inventory.nvml_error or ""),
    ),
    "driver": Capability(
        Kind.VERSION, "the NVIDIA driver", "NVML", lambda inventory, _: _driver(inventory.driver, inventory)
    ),
    "cuda_driver": Capability(
        Kind.VERSION,
        "the newest CUDA the driver supports",
        "NVML",
        lambda inventory, _: _driver(inventory.cuda_driver, inventory),
    ),
    "cuda": Capability(
        Kind.VERSION,
        "the CUDA runtime torch is built for",
        "torch/version.py, read as text",
        lambda *_: software.cuda(),
    ),
    "cudnn": Capability(
        Kind.VERSION,
        "the cuDNN installed for torch",
        "metadata of nvidia-cudnn-cu<major>",
        lambda *_: software.cudnn(),
    ),
    "torch": Capability(Kind.VERSION, "PyTorch", "metadata of the distribution", lambda *_: software.torch()),
    "triton": Capability(Kind.VERSION, "Triton", "metadata of the distribution", lambda *_: software.triton()),
    "cpp_compiler": Capability(
        Kind.VERSION,
        "the C++ compiler torch would run",
        "$CXX --version, or that of c++, g++ or clang++ on the path",
        lambda *_: software.cpp_compiler(),
    ),
    "python": Capability(Kind.VERSION, "the Python interpreter", "sys.version_info", lambda *_: software.python()),
    "numpy": Capability(
        Kind.VERSION, "NumPy", "metadata of the distribution", lambda *_: software.distribution("numpy")
    ),
    "platform": Capability(
        Kind.TEXT, "operating system and processor, such as linux-x86_64", "sys.platform and uname", _platform
    ),
}
