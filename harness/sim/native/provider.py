"""The interface of a software device to the rest of the harness: what declares it, its build, its use in a process.

Each kind has a module with the functions of `DeviceProvider`; `Backend.provider` names it. Packages on higher floors
need no other module.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from harness.backends.backend import Backend
from harness.core.errors import HarnessError


@dataclass(frozen=True, slots=True)
class ProvidedDevice:
    """The parts of a software device that a run needs.

    `library`: the library that executors load; None for a device that they have anyway. `facts`: facts about the build,
    for reports. `variables`: the environment variables that every process that runs cases must have from its start on.
    """

    library: str | None
    facts: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


class DeviceProvider(Protocol):
    """The functions of the module of one kind."""

    def provide(self) -> ProvidedDevice:
        """Build the libraries unless the cache has them. Raise HarnessError."""

    def enter(self, library: str) -> None:
        """Prepare this executor, forked or fresh, for cases. Any exception means that the device cannot be used."""

    def enter_inline(self, library: str) -> None:
        """Prepare a pytest process that runs cases itself. Called before each case. Raise HarnessError."""

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Apply the variables to this process, which was started without them. Raise HarnessError."""


def provider_of(backend: Backend) -> DeviceProvider:
    """Return the provider of a software device."""
    return cast(DeviceProvider, importlib.import_module(backend.provider))


#: The most devices: torch keeps their indices in 8 bits.
MOST_DEVICES = 64

_LEAST_MEMORY, _MOST_MEMORY = 2 << 20, 1 << 62
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class MachineError(HarnessError):
    """An environment variable for software devices has an invalid value."""


def parse_device_count(name: str, text: str | None, default: int) -> int:
    """Return the number of devices. `text`: the value of the variable `name`, None if it is not set.

    Raise MachineError.
    """
    if text is None:
        return default
    if not (re.fullmatch(r"[ \t]*\d{1,9}[ \t]*", text, re.ASCII) and 1 <= int(text) <= MOST_DEVICES):
        raise MachineError(f"{name}={text!r}: expected a number from 1 to {MOST_DEVICES}")
    return int(text)


def parse_device_memory(name: str, text: str | None, default: int) -> int:
    """Return the bytes of each device, from 2 MiB (one segment of an allocator) to 2**62. Raise MachineError.

    The libraries of both software devices read the same variables by the same rules (`softdevice/csrc/core/amounts.h`).
    """
    if text is None:
        return default
    match = re.fullmatch(r"[ \t]*(\d{1,19})[ \t]*(KiB|MiB|GiB)?[ \t]*", text, re.ASCII)
    size = int(match[1]) * _UNITS[match[2] or ""] if match else 0
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise MachineError(
            f"{name}={text!r}: expected a number of bytes, at least {_LEAST_MEMORY >> 20} MiB, "
            "such as 268435456, 256MiB or 1GiB"
        )
    return size
