"""The software devices of this process, from environment variables. This module does not need torch.

The rules are those of ``csrc/core/config.cpp``, which reads the same variables in processes that use the devices:

- ``SOFT_DEVICE_COUNT``: how many devices the machine has, 1 to 64; default 2;
- ``SOFT_DEVICE_MEMORY``: memory of each device in bytes, or with the suffix KiB, MiB or GiB, at least 2 MiB; default
  1 GiB;
- ``SOFT_VISIBLE_DEVICES``: the visible devices, by index or UUID, in this order; default all, empty means none;
- ``SOFT_SYNCHRONOUS``: 1 if a launch returns once its work is done; default 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.devices.device import Device, DeviceError, Inventory
from harness.sim.native import provider, toolchain
from harness.sim.native.provider import MachineError
from harness.sim.softdevice import registration as soft

_DEFAULT_DEVICES = 2
_DEFAULT_MEMORY = 1 << 30


def software_devices(environ: Mapping[str, str]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the visible devices, in the order of the variable, and the hidden devices. Raise MachineError."""
    count = provider.parse_device_count(soft.COUNT, environ.get(soft.COUNT), _DEFAULT_DEVICES)
    memory = provider.parse_device_memory(soft.MEMORY, environ.get(soft.MEMORY), _DEFAULT_MEMORY)
    asynchronous = not _synchronous(environ.get(soft.SYNCHRONOUS))
    every = [
        Device(
            uuid=f"SOFT-{index}",
            kind=soft.BACKEND.kind,
            name=soft.BACKEND.label,
            index=index,
            memory=memory,
            observed={"asynchronous": asynchronous},
        )
        for index in range(count)
    ]
    mask = environ.get(soft.MASK)
    if mask is None:
        return tuple(every), ()
    visible = _visible(mask, every)
    return visible, tuple(device for device in every if device not in visible)


def inventory(environ: Mapping[str, str]) -> Inventory:
    """Return the devices that a run may use.

    Raise MachineError, and DeviceError if no device is visible or can be built.
    """
    visible, hidden = software_devices(environ)
    if not visible:
        raise DeviceError(f"--device=soft: {soft.MASK}={environ.get(soft.MASK)!r} hides all software devices; unset it")
    toolchain.require_compiler(soft.BACKEND)
    return Inventory(devices=visible, hidden=hidden, nvml_error="not used: the run is on software devices")


def _synchronous(text: str | None) -> bool:
    value = "0" if text is None else text.strip()
    if value not in ("0", "1"):
        raise MachineError(f"{soft.SYNCHRONOUS}={text!r}: expected 0 or 1")
    return value == "1"


def _visible(mask: str, every: list[Device]) -> tuple[Device, ...]:
    if not mask.strip():
        return ()
    devices_by_name = {name: device for device in every for name in (device.uuid, str(device.index))}
    visible: list[Device] = []
    for entry in (part.strip() for part in mask.split(",")):
        device = devices_by_name.get(str(int(entry)) if re.fullmatch(r"\d{1,9}", entry, re.ASCII) else entry)
        if device is None:
            last = len(every) - 1
            known_names = f"0 to {last}, or SOFT-0 to SOFT-{last}"
            raise MachineError(f"{soft.MASK}={mask!r}: {entry!r} is not a device, expected {known_names}")
        if device in visible:
            raise MachineError(f"{soft.MASK}={mask!r}: {entry!r} is {device.uuid} again, expected each device once")
        visible.append(device)
    return tuple(visible)
