"""The software devices of this process, as the environment says. Reads variables and no more: torch is not needed.

The rules are those of ``csrc/core/config.cpp``, which reads the same variables where the devices are used:

- ``SOFT_DEVICE_COUNT``: how many the machine has, 1 to 64; 2 when not set;
- ``SOFT_DEVICE_MEMORY``: bytes of each, or with the suffix KiB, MiB or GiB, at least 2 MiB; 1 GiB when not set;
- ``SOFT_VISIBLE_DEVICES``: those that are seen, by index or UUID, in this order; all when not set, none when empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.backends import soft
from harness.devices.device import Device
from harness.errors import HarnessError

_MOST_DEVICES = 64
_DEFAULT_DEVICES = 2
_DEFAULT_MEMORY = 1 << 30
_LEAST_MEMORY = 2 << 20  # one segment of the allocator
_MOST_MEMORY = (1 << 63) - 1
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class MachineError(HarnessError):
    """A variable with a value that says nothing about software devices."""


def devices(environ: Mapping[str, str]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """The devices that are visible, in the order asked for, and those that are hidden. Raises MachineError."""
    memory = _memory(environ.get(soft.MEMORY))
    every = [
        Device(uuid=f"SOFT-{index}", kind=soft.BACKEND.kind, name=soft.BACKEND.label, index=index, memory=memory)
        for index in range(_count(environ.get(soft.COUNT)))
    ]
    mask = environ.get(soft.MASK)
    if mask is None:
        return tuple(every), ()
    visible = _visible(mask, every)
    return visible, tuple(device for device in every if device not in visible)


def _count(text: str | None) -> int:
    if text is None:
        return _DEFAULT_DEVICES
    if not (re.fullmatch(r"[ \t]*\d{1,9}[ \t]*", text, re.ASCII) and 1 <= int(text) <= _MOST_DEVICES):
        raise MachineError(f"{soft.COUNT}={text!r}: expected a number from 1 to {_MOST_DEVICES}")
    return int(text)


def _memory(text: str | None) -> int:
    if text is None:
        return _DEFAULT_MEMORY
    found = re.fullmatch(r"[ \t]*(\d{1,19})[ \t]*(KiB|MiB|GiB)?[ \t]*", text, re.ASCII)
    size = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise MachineError(
            f"{soft.MEMORY}={text!r}: expected a number of bytes, at least 2 MiB, as in 268435456, 256MiB or 1GiB"
        )
    return size


def _visible(mask: str, every: list[Device]) -> tuple[Device, ...]:
    if not mask.strip():
        return ()
    known = {name: device for device in every for name in (device.uuid, str(device.index))}
    visible: list[Device] = []
    for entry in (part.strip() for part in mask.split(",")):
        device = known.get(str(int(entry)) if re.fullmatch(r"\d{1,9}", entry, re.ASCII) else entry)
        if device is None:
            last = len(every) - 1
            known_names = f"0 to {last}, or SOFT-0 to SOFT-{last}"
            raise MachineError(f"{soft.MASK}={mask!r}: {entry!r} is no device, expected {known_names}")
        if device in visible:
            raise MachineError(f"{soft.MASK}={mask!r}: {entry!r} names {device.uuid} a second time, expected each once")
        visible.append(device)
    return tuple(visible)
