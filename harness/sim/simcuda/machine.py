"""The simulated GPUs of this machine, from environment variables. Needs neither torch nor the libraries.

The rules are those of ``csrc/include/simcuda_machine.h``, which reads the same variables in processes that use the
devices:

- ``SIMCUDA_DEVICE_COUNT``: how many devices the machine has, 1 to 64; default 2;
- ``SIMCUDA_DEVICE_MEMORY``: memory of each device in bytes, or with the suffix KiB, MiB or GiB, at least 2 MiB; default
  2 GiB;
- ``CUDA_VISIBLE_DEVICES``: the visible devices, by index or UUID, by the rules of CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.backends import cuda, simcuda
from harness.devices import software
from harness.devices.capabilities import format_capability
from harness.devices.device import Device, DeviceError, Inventory
from harness.devices.visibility import apply_visible_mask
from harness.sim.native import declared
from harness.sim.native.declared import MachineError
from harness.sim.native.toolchain import BuildError, require_compiler
from harness.sim.simcuda import toolchain

#: The version of the driver that NVML reports.
DRIVER = "580.00"

_COMPUTE_CAPABILITY = (9, 0)
_DEFAULT_DEVICES = 2
_DEFAULT_MEMORY = 2 << 30


def simulated_devices(environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Return all devices of the machine, masked or not. Raise MachineError."""
    count = declared.parse_device_count(simcuda.COUNT, environ.get(simcuda.COUNT), _DEFAULT_DEVICES)
    memory = declared.parse_device_memory(simcuda.MEMORY, environ.get(simcuda.MEMORY), _DEFAULT_MEMORY)
    (prefix,) = simcuda.BACKEND.uuid_prefixes
    return tuple(
        Device(
            uuid=f"{prefix}{index:012d}",
            kind=simcuda.BACKEND.kind,
            name=simcuda.NAME,
            index=index,
            memory=memory,
            compute_capability=_COMPUTE_CAPABILITY,
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            ecc=True,
        )
        for index in range(count)
    )


def simulated_inventory(environ: Mapping[str, str]) -> Inventory:
    """Return the devices that a run may use. Raise MachineError for an invalid variable, or if no device is visible."""
    selection = apply_visible_mask(simulated_devices(environ), environ)
    if not selection.visible:
        why = "; ".join(selection.notes)
        raise MachineError(
            f"{why or f'{cuda.MASK}={environ.get(cuda.MASK)!r} hides every GPU'}; unset {cuda.MASK}, or name GPUs of "
            "the simulated CUDA"
        )
    built_for = software.torch_cuda_version().value
    return Inventory(
        devices=selection.visible,
        hidden=selection.hidden,
        driver=DRIVER,
        cuda_driver=None if built_for is None else format_capability("cuda", built_for),
        notes=(f"{simcuda.BACKEND.label}: driver and NVML are simulated too", *selection.notes),
    )


def buildable_inventory(environ: Mapping[str, str]) -> Inventory:
    """Return `simulated_inventory`. Raise DeviceError if torch and its compiler cannot build the libraries."""
    try:
        toolchain.cuda_major()
    except BuildError as error:
        raise DeviceError(f"--device={simcuda.BACKEND.kind}: {error}") from None
    require_compiler(simcuda.BACKEND)
    return simulated_inventory(environ)
