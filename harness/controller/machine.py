"""The devices of a run, selected by ``--device``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import cast

from harness.backends import cuda, simcuda, simulation, table
from harness.backends.table import BACKENDS
from harness.devices import census
from harness.devices import inventory as detected
from harness.devices.device import DeviceError, Inventory


def inventory(wanted: str, environ: Mapping[str, str] | None = None) -> Inventory:
    """Return the devices for ``--device=wanted``: a kind, or ``auto`` for GPUs, and the CPU if there are none.

    In a process that has the simulated CUDA (`harness sim run`), ``auto`` stands for simulated devices: its NVML would
    list them as GPUs.

    A kind may be registered outside the tree, or known only to torch. The masks in `environ`, such as
    ``CUDA_VISIBLE_DEVICES``, apply. `environ` defaults to ``os.environ``. Raises DeviceError, RegistrationError, and
    MachineError for invalid variables.
    """
    environ = os.environ if environ is None else environ
    table.raise_problems()
    simulated = simulation.simulated_runtime() is not None
    if simulated and wanted == cuda.BACKEND.kind:
        raise DeviceError(
            f"--device={wanted}: the CUDA of this process is simulated: use --device={simcuda.BACKEND.kind}, or "
            "start it without harness sim"
        )
    backend = table.activate(wanted) if wanted != "auto" else simcuda.BACKEND if simulated else None
    variables = dict.fromkeys(backend.faults_variable for backend in BACKENDS.values() if backend.injectable)
    if variable := next((name for name in variables if environ.get(name)), None):
        raise DeviceError(
            f"{variable} is set: unset it and use --inject or HARNESS_INJECT, so that the run records the faults"
        )
    if backend is None:
        return detected.discover_devices(environ)
    if not backend.inventory:
        return census.inventory(backend, environ)
    module, _, function = backend.inventory.partition(":")
    listed = cast(Callable[[Mapping[str, str]], Inventory], getattr(importlib.import_module(module), function))
    return listed(environ)
