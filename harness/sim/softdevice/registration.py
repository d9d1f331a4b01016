"""Software devices: the project's own accelerator for torch, on the CPU.

They are registered like devices outside this tree: the entry point ``soft`` of ``gpu_conformance.backends``
(``pyproject.toml``) names `BACKEND`, and code outside this folder knows nothing else about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend

MASK = "SOFT_VISIBLE_DEVICES"
COUNT = "SOFT_DEVICE_COUNT"
MEMORY = "SOFT_DEVICE_MEMORY"
INJECT = "SOFT_INJECT"
SYNCHRONOUS = "SOFT_SYNCHRONOUS"


def _module(torch: ModuleType) -> Any:
    """Return ``torch.soft``; None if it is not loaded."""
    return getattr(torch, "soft", None)


class SoftBackend(Backend):
    """The software device reports its failures, its injected faults and its threads."""

    def failures(self, torch: ModuleType) -> Sequence[str]:
        soft = _module(torch)
        return [] if soft is None else [text for i in range(soft.device_count()) if (text := soft.failure(i))]

    def faults_struck(self, torch: ModuleType) -> Mapping[str, int]:
        soft = _module(torch)
        return {} if soft is None else dict(soft.faults_struck())

    def own_threads(self, torch: ModuleType) -> int:
        """The first use of a device starts all threads, and they stay."""
        return int(_module(torch).thread_count())


BACKEND = SoftBackend(
    kind="soft",
    inventory="harness.sim.softdevice.machine:inventory",
    noun="the software device",
    host_kernels=True,
    label="soft (software device)",
    no_gpu="the device is a software device",
    mask=MASK,
    variables=(COUNT, MEMORY, SYNCHRONOUS),
    hardware=False,
    provider="harness.sim.softdevice.build",
    faults=(str(Path(__file__).with_name("csrc") / "faults.def"),),
    faults_variable=INJECT,
    implied={"accelerator": True, "accelerator_graphs": True},
    capabilities={"sparse": False, "process_groups": False, "inductor": False},
    # The allocators of the device take their memory from the host. Libraries keep buffers for each thread that calls
    # them (MKL 4.6 MiB at the first larger matrix product). It is random which thread gets which work, and so when each
    # thread allocates its buffers.
    ignored_meters=("heap_bytes", "mapped_bytes"),
)
