"""What a census observes of a registered device: facts that neither its kind nor its registration tells.

Each is a capability of the same name (`harness.devices.capabilities`) and is observed in a fork of its own, since a
device without the part may crash or hang.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.backends.backend import Backend

# Work whose launches take the host of a GPU a tenth of the GPU's time: each launch reads and writes 64 MiB.
_ELEMENTS, _LAUNCHES, _TRIALS = 1 << 24, 8, 3
_LONG = 1.0  # seconds
_CHILD_LIMIT = 20  # seconds
_LONG_SEED = 2**63 + 1


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact.

    `observe` returns it, or raises. `if_it_fails` is the fact if it raises, or if its process ends; None leaves the
    capability as it is for GPUs. `lacks` follows the name of the device in the reason for False.
    """

    observe: Callable[[Backend, Any], bool]
    lacks: str
    if_it_fails: bool | None = False


def _has_graphs(_: Backend, torch: Any) -> bool:
    """Make a `torch.accelerator.Graph`: torch raises for a device without an implementation."""
    torch.accelerator.Graph()
    return True


def _is_asynchronous(backend: Backend, torch: Any) -> bool:
    """Find out whether, in one of several trials, work takes longer after its launches than the launches themselves.

    A pending event proves nothing: a device that computes in its launches may record events later.
    """
    block = torch.ones(_ELEMENTS, device=backend.first_device(torch))
    stream = torch.accelerator.current_stream()
    for _ in range(_TRIALS):
        stream.synchronize()
        event = torch.Event(block.device)
        began = time.monotonic()
        for _ in range(_LAUNCHES):
            block.neg_()
        launched = time.monotonic()
        event.record(stream)
        event.synchronize()
        if time.monotonic() - launched > launched - began:
            return True
        if launched - began > _LONG:
            break
    return False


def _has_sparse(backend: Backend, torch: Any) -> bool:
    torch.eye(2).to(backend.first_device(torch)).to_sparse().to_dense().cpu()
    return True


def _has_process_groups(backend: Backend, _: Any) -> bool:
    """Find out whether torch.distributed has a registered and available backend for the type of the device."""
    distributed = importlib.import_module("torch.distributed")
    name = distributed.get_default_backend_for_device(backend.torch_type)
    return bool(distributed.is_backend_available(name))


def _has_caching_allocator(backend: Backend, torch: Any) -> bool:
    device = backend.first_device(torch)
    held = torch.zeros(1, device=device)
    return held.device == device and bool(torch.accelerator.memory_stats(device))


def _has_pinned_memory(_: Backend, torch: Any) -> bool:
    return bool(torch.zeros(1).pin_memory().is_pinned())


def _has_autocast(backend: Backend, torch: Any) -> bool:
    """Compute in an autocast region. A device may have the region, and no operator that uses it."""
    x = torch.ones(2, 2, device=backend.first_device(torch))
    with torch.autocast(backend.torch_type):
        found = x @ x
    return bool(found.dtype != x.dtype)


def _has_wide_seeds(backend: Backend, torch: Any) -> bool:
    generator = torch.Generator(device=backend.first_device(torch))
    generator.manual_seed(_LONG_SEED)
    return bool(generator.initial_seed() == _LONG_SEED)


def _refuses_forks(backend: Backend, torch: Any) -> bool:
    """Find out whether a fork of a process with a used device can compute on it. Crashes and hangs refuse as well."""
    device = backend.first_device(torch)
    used = torch.ones(4, device=device)
    backend.synchronize(torch, 0)
    child = os.fork()
    if child == 0:
        signal.alarm(_CHILD_LIMIT)
        status = 1
        with contextlib.suppress(BaseException):
            status = int((used + torch.ones(4, device=device)).sum().item() != 8)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _has_inductor(backend: Backend, _: Any) -> bool:
    from harness import _compat  # imports pytest, which commands that run no case do not need

    return _compat.has_inductor(backend.torch_type)


OBSERVATIONS: Mapping[str, Observation] = {
    "accelerator_graphs": Observation(_has_graphs, "torch has no graphs for {kind}"),
    "asynchronous": Observation(_is_asynchronous, "the work of {kind} is done when its launch returns", None),
    "sparse": Observation(_has_sparse, "torch has no sparse tensors on {kind}"),
    "process_groups": Observation(_has_process_groups, "torch.distributed has no backend for {kind}"),
    "inductor": Observation(_has_inductor, "inductor generates no code for {kind}"),
    "caching_allocator": Observation(_has_caching_allocator, "torch.accelerator.memory_stats has no {kind}"),
    "pinned_memory": Observation(_has_pinned_memory, "pin_memory() does not work with {kind}"),
    "autocast": Observation(_has_autocast, "autocast changes no type on {kind}"),
    "wide_seeds": Observation(_has_wide_seeds, "generators of {kind} refuse the seed 2**63 + 1"),
    "refuses_forks": Observation(_refuses_forks, "memory of {kind} survives a fork", True),
}


def observe(name: str, backend: Backend, torch: Any) -> bool | None:
    """Return one fact of `OBSERVATIONS`. This uses the device, and may end the process."""
    observation = OBSERVATIONS[name]
    try:
        return observation.observe(backend, torch)
    except Exception:  # noqa: BLE001 - a device may raise anything for a part that it lacks
        return observation.if_it_fails
