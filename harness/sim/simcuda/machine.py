"""The simulated GPUs of this machine, from environment variables, and ``harness sim doctor``. Needs no torch.

The rules are those of ``csrc/include/simcuda_machine.h``, which reads the same variables in processes that use the
devices:

- ``SIMCUDA_DEVICE_COUNT``: how many devices the machine has, 1 to 64; default 2;
- ``SIMCUDA_DEVICE_MEMORY``: memory of each device in bytes, or with the suffix KiB, MiB or GiB, at least 2 MiB; default
  2 GiB;
- ``CUDA_VISIBLE_DEVICES``: the visible devices, by index or UUID, by the rules of CUDA.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.backends import cuda, simcuda
from harness.core.disposable import run_disposable
from harness.core.errors import HarnessError
from harness.core.text import format_bytes, format_count, format_exit_code, single_line
from harness.devices import software
from harness.devices.capabilities import format_capability
from harness.devices.device import Device, DeviceError, Inventory, apply_visible_mask
from harness.sim.native import provider
from harness.sim.native.provider import MachineError
from harness.sim.native.toolchain import BuildError, require_compiler
from harness.sim.simcuda import build, toolchain

#: The version of the driver that NVML reports.
DRIVER = "580.00"

_COMPUTE_CAPABILITY = (9, 0)
_DEFAULT_DEVICES = 2
_DEFAULT_MEMORY = 2 << 30


def simulated_devices(environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Return all devices of the machine, masked or not. Raise MachineError."""
    count = provider.parse_device_count(simcuda.COUNT, environ.get(simcuda.COUNT), _DEFAULT_DEVICES)
    memory = provider.parse_device_memory(simcuda.MEMORY, environ.get(simcuda.MEMORY), _DEFAULT_MEMORY)
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


_LIMIT = 600.0  # seconds; on a busy machine the compiler alone takes one minute


class ProbesError(HarnessError):
    """The program of the probes has failed before its first one."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether one thing runs. `error`: None if it does. `limit`: why it cannot; empty if it should."""

    name: str
    error: str | None
    limit: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether it should run, and does not."""
        return self.error is not None and not self.limit

    def line(self) -> str:
        """Return it for a reader."""
        if self.error is None:
            return f"runs          {self.name}"
        if self.limit:
            return f"needs a GPU   {self.name}: {self.limit}"
        return f"DOES NOT RUN  {self.name}: {self.error}"


def describe_environment(environ: Mapping[str, str]) -> list[str]:
    """Return what the simulation is made of. Raise BuildError, MachineError."""
    facts = build.describe_build()
    first, *others = simulated_inventory(environ).devices
    count = format_count(1 + len(others), "device")
    return [
        f"torch      {software.torch_build()} of {sys.executable}",
        f"compiler   {facts['compiler']}",
        f"libraries  {facts['key']}",
        f"devices    {count} with {format_bytes(first.memory or 0)}: {first.name}",
    ]


def examine(environ: Mapping[str, str], limit: float = _LIMIT) -> list[ProbeResult]:
    """Run the probes in a process with this environment, for `limit` seconds at most. Raise ProbesError."""
    done = run_disposable([sys.executable, "-m", "harness.sim.simcuda.probes"], limit, environ=environ)
    results = list(read_results(done.output.decode(errors="replace")))
    if not results:
        raise ProbesError(f"the simulated CUDA: torch cannot be imported on it: {single_line(done.last_error)}")
    if results[-1].error == _UNFINISHED:
        status = "was killed" if done.status is None else format_exit_code(done.status)
        how = f"the process ended there ({status})" if done.in_time else f"it did not end within {limit:.0f} s"
        results[-1] = ProbeResult(results[-1].name, how)
    return results


_UNFINISHED = "unfinished"


def read_results(output: str) -> Iterator[ProbeResult]:
    """Yield the results in the output of the probes. One that has begun only, as the last one, is unfinished."""
    begun = None
    for line in output.splitlines():
        if not line.startswith("{"):
            continue  # torch's profiler prints too
        entry = json.loads(line)
        if "begin" in entry:
            begun = entry["begin"]
        else:
            begun = None
            yield ProbeResult(entry["probe"], entry["error"], entry["limit"])
    if begun is not None:
        yield ProbeResult(begun, _UNFINISHED)
