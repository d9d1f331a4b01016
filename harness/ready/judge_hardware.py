"""From the inventory of a node to what differs from its hardware file. Pure functions over plain values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.devices.capabilities import Capabilities
from harness.devices.device import Detected, Device, Inventory
from harness.gating.hardware import Hardware, broken_hardware, hardware_mismatches
from harness.ready.judge_host import gpus
from harness.ready.rules import Finding

#: The conditions of a hardware file that readings can check. A run with the file checks the others.
_READABLE = ("device", "silicon", "model", "compute_capability", "memory", "mig", "ecc", "device_count", "nvml")


def judge_hardware(hardware: Hardware, inventory: Inventory) -> Iterator[tuple[str | None, Finding]]:
    """Yield what differs from the hardware file, with the UUID of the GPU, or None for the node."""
    known = {name: inventory_probe(name, inventory) for name in ("device_count", "nvml")}
    own = hardware.model_copy(update={"device": {}, "offers": _readable(hardware.offers, known)})
    for unmet in broken_hardware(own, Capabilities(known)):
        kind = "gpu_missing" if unmet.capability == "device_count" else "hardware"
        yield None, Finding(kind, f"{unmet.capability} {unmet.wanted}", unmet.found, "by the hardware file")
    for device in gpus(inventory):
        if device.fault is not None:
            continue
        probes = device_probes(device)
        wanted = hardware.model_copy(
            update={"device": _readable(hardware.device, probes), "offers": _readable(hardware.offers, probes)}
        )
        capabilities = Capabilities(probes)
        for unmet in (*hardware_mismatches(wanted, capabilities), *broken_hardware(wanted, capabilities)):
            finding = Finding("hardware", f"{unmet.capability} {unmet.wanted}", unmet.found, "by the hardware file")
            yield device.mig_parent or device.uuid, finding


def _readable(conditions: Mapping[str, Any], probes: Mapping[str, object]) -> dict[str, Any]:
    return {name: wanted for name, wanted in conditions.items() if name in _READABLE and name in probes}


def inventory_probe(name: str, inventory: Inventory) -> Callable[[], Detected]:
    """Return the probe of a capability of the whole node."""
    count = len({device.uuid for device in (*gpus(inventory), *inventory.hidden) if device.fault is None})
    value: int | bool = count if name == "device_count" else inventory.nvml_error is None
    return functools.partial(Detected, value)


def device_probes(device: Device) -> dict[str, Callable[[], Detected]]:
    """Return the probes of the capabilities that the inventory has for a device."""
    values: dict[str, Any] = {
        "device": device.kind,
        "silicon": device.backend.hardware,
        "model": device.name,
        "compute_capability": device.compute_capability,
        "memory": device.memory,
        "mig": device.mig_parent is not None,
        "ecc": device.ecc,
    }
    return {
        name: functools.partial(Detected, value, "" if value is not None else "nvml does not report it")
        for name, value in values.items()
    }
