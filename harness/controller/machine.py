"""The devices of a run, selected by ``--device``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.backends import cpu, cuda, simcuda, soft
from harness.core.errors import HarnessError
from harness.devices import software
from harness.devices.device import Inventory
from harness.devices.inventory import discover_devices
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import machine as simulated
from harness.sim.simcuda import toolchain
from harness.sim.softdevice import machine


class DeviceError(HarnessError):
    """There is no device of the requested kind, or it cannot be used."""


def inventory(wanted: str, environ: Mapping[str, str] | None = None) -> Inventory:
    """The devices for ``--device=wanted``. The masks in `environ`, such as ``CUDA_VISIBLE_DEVICES``, apply.

    auto: GPUs, or the CPU if there are none; cuda: GPUs; cpu: the CPU, even if there are GPUs; simcuda: simulated GPUs;
    soft: software devices.
    `environ` defaults to ``os.environ``. Raises DeviceError, and MachineError for invalid variables.
    """
    environ = os.environ if environ is None else environ
    if variable := next((name for name in (soft.INJECT, cuda.INJECT) if environ.get(name)), None):
        raise DeviceError(
            f"{variable} is set: unset it and use --inject or HARNESS_INJECT, so that the run records the faults"
        )
    if wanted == soft.BACKEND.kind:
        return _software_devices(environ)
    if wanted == simcuda.BACKEND.kind:
        return _simulated_devices(environ)
    if wanted == cpu.BACKEND.kind:
        return discover_devices({**environ, cuda.MASK: ""})
    found = discover_devices(environ)
    if wanted == cuda.BACKEND.kind and not found.gpus:
        raise DeviceError(
            f"--device=cuda: there is no usable GPU ({_why_none(found)}); leave --device out to use the CPU"
        )
    return found


def _software_devices(environ: Mapping[str, str]) -> Inventory:
    visible, hidden = machine.software_devices(environ)
    if not visible:
        raise DeviceError(f"--device=soft: {soft.MASK}={environ.get(soft.MASK)!r} hides all software devices; unset it")
    _expect_compiler(wanted=soft.BACKEND.kind, noun="the software device")
    return Inventory(devices=visible, hidden=hidden, nvml_error="not used: the run is on software devices")


def _simulated_devices(environ: Mapping[str, str]) -> Inventory:
    try:
        toolchain.cuda_major()
    except BuildError as error:
        raise DeviceError(f"--device=simcuda: {error}") from None
    _expect_compiler(wanted=simcuda.BACKEND.kind, noun=toolchain.NOUN)
    return simulated.simulated_inventory(environ)


def _expect_compiler(*, wanted: str, noun: str) -> None:
    compiler = software.cpp_compiler_version()
    if compiler.value is None:
        raise DeviceError(
            f"--device={wanted}: no C++ compiler to build {noun}: {compiler.detail}; install g++ or set CXX"
        )


def _why_none(found: Inventory) -> str:
    sick = [f"{device.uuid}: {device.fault}" for device in found.devices if device.fault is not None]
    hidden = [f"{len(found.hidden)} hidden by {cuda.MASK}"] if found.hidden else []
    return "; ".join([*([found.nvml_error] if found.nvml_error else []), *sick, *hidden]) or "nvml finds none"
