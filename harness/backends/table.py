"""All kinds of devices. To add a kind, add a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from harness.backends import cpu, cuda, simcuda, soft
from harness.backends.backend import Backend, DeviceKind

#: By kind, in the order of reports.
BACKENDS: Mapping[DeviceKind, Backend] = {
    each.kind: each for each in (cuda.BACKEND, simcuda.BACKEND, soft.BACKEND, cpu.BACKEND)
}
#: The device into which faults are injected if none is named: every machine has it.
FAULTY_BY_DEFAULT = soft.BACKEND
#: All environment variables that decide, together with the machine, which devices a process has.
DEVICE_VARIABLES = tuple(
    dict.fromkeys(name for each in BACKENDS.values() for name in (each.mask, *each.variables) if name is not None)
)


def backend_of(uuid: str) -> Backend | None:
    """Return the kind of device that a UUID names; None for an unknown one, as in the journal of a newer harness.

    The longest prefix decides: UUIDs of simulated GPUs begin like those of GPUs.
    """
    fits = [
        (len(prefix), each.kind)
        for each in BACKENDS.values()
        for prefix in each.uuid_prefixes
        if uuid.startswith(prefix)
    ]
    return BACKENDS[max(fits)[1]] if fits else None


def is_hardware(uuid: str) -> bool:
    """Return whether a UUID names a device that a driver serves."""
    backend = backend_of(uuid)
    return backend is not None and backend.hardware


def names(kind: DeviceKind) -> tuple[str, ...]:
    """Return what a requirement may call a device of this kind: its kind, and the kind that torch takes it for."""
    backend = BACKENDS.get(kind)
    return (kind,) if backend is None else tuple(dict.fromkeys((kind, backend.torch_type)))


def labels(uuids: tuple[str, ...] | list[str]) -> str:
    """Return the labels of the software devices among these, for reports; empty for runs on GPUs or on the CPU."""
    found = {each.label for uuid in uuids if (each := backend_of(uuid)) is not None and each.software}
    return ", ".join(sorted(found))
