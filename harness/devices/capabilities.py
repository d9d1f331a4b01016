"""The capabilities of one device of this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.devices.detected import Detected, Value
from harness.devices.device import Device, Inventory
from harness.devices.facts import DetectionSubject
from harness.devices.prober import Prober
from harness.devices.vocabulary import VOCABULARY, Capability, ValueKind

__all__ = [
    "VOCABULARY",
    "Capabilities",
    "Capability",
    "ValueKind",
    "detect_capabilities",
    "format_bytes",
    "format_capability",
]


class Capabilities(Mapping[str, Value | None]):
    """The value of each capability of `VOCABULARY`; None if absent. Each is detected at its first use.

    Versions are tuples of ints; memory is in bytes. `finding` and `describe` give the reason for an absence.
    """

    __slots__ = ("_findings", "_probes")

    def __init__(self, probes: Mapping[str, Callable[[], Detected]]) -> None:
        self._probes = dict(probes)
        self._findings: dict[str, Detected] = {}

    def finding(self, name: str) -> Detected:
        """Return the value of `name` and its detail, the same at every call. Raise KeyError for an unknown name."""
        if name not in self._findings:
            self._findings[name] = self._probes[name]()
        return self._findings[name]

    def describe(self, name: str) -> str:
        """Return the finding as text: ``8.0GiB``, ``1 (cpu)``, ``absent (torch is not installed)``."""
        finding = self.finding(name)
        words = "absent" if finding.value is None else format_capability(name, finding.value)
        return f"{words} ({finding.detail})" if finding.detail else words

    def __getitem__(self, name: str) -> Value | None:
        return self.finding(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._probes)

    def __len__(self) -> int:
        return len(self._probes)


def detect_capabilities(inventory: Inventory, device: Device, cache: Path | None = None) -> Capabilities:
    """Return the capabilities of `device`, a device of the inventory. Detect nothing yet, so the call is cheap.

    `cache` is a folder that the processes of the run share. It keeps the answers of probe processes.
    """
    subject = DetectionSubject(inventory, device, Prober(device, driver=inventory.driver, cache=cache))

    def probe(capability: Capability) -> Callable[[], Detected]:
        return lambda: capability.find(subject)

    declared = device.backend.capabilities
    own = {name: functools.partial(Detected, value, "declared by its registration") for name, value in declared.items()}
    return Capabilities({name: own.get(name) or probe(capability) for name, capability in VOCABULARY.items()})


def format_capability(name: str, value: Value) -> str:
    """Return a value of capability `name` as text: ``2.13.0``, ``8.0GiB``, ``True``."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if VOCABULARY[name].kind is ValueKind.BYTES and isinstance(value, int):
        return format_bytes(value)
    return str(value)


def format_bytes(count: int) -> str:
    """Return a number of bytes in the largest binary unit that it reaches, with one decimal, rounded down.

    The number is rounded down, so that a device with 11.96 GiB, which fails ``>=12GiB``, is not shown as 12.0GiB.
    """
    unit, name = next(((u, n) for u, n in _UNITS if count >= u), (1, "B"))
    if unit == 1:
        return f"{count}B"
    tenths = count * 10 // unit
    return f"{tenths // 10}.{tenths % 10}{name}"


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
