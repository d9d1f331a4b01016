"""A node and the speed of its GPUs against the hardware file, and against the other GPUs. Pure functions."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.core import figures
from harness.core.figures import Floor
from harness.devices.capabilities import Capabilities
from harness.devices.device import Detected, Device, Inventory
from harness.gating.profiles import Hardware, broken_hardware, hardware_mismatches
from harness.ready.judge_node import gpus
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


# Whether what was measured is fast enough: against the floors of a hardware file, and against the other GPUs. Pure.
#
# **The rule for outliers.** Among at least three GPUs of one model, a GPU is slow if its figure is worse than their
# median by more than a fifth, and by more than six times their spread. The spread is the median of the distances to the
# median (MAD), times 1.4826, which makes it the standard deviation of normal figures; at least 1% of the median, since
# a few GPUs may agree by chance. Median and MAD do not move as long as fewer than half of the GPUs are slow. Six
# spreads: of normal figures, one in 10^9 lies beyond. A fifth: chips of one model differ by some percent, and by ten if
# one is warmer.

Key = TypeVar("Key")
APART, SPREADS, LEAST_SPREAD, LEAST_GPUS = 0.2, 6.0, 0.01, 3
_NORMAL = 1.4826
#: Figures that share a link of the host: with several GPUs at once none has it alone, and no floor holds.
SHARED = frozenset(
    {
        "h2d_pinned_bandwidth",
        "h2d_pageable_bandwidth",
        "d2h_pinned_bandwidth",
        "d2h_pageable_bandwidth",
        "bidirectional_bandwidth",
        "peer_bandwidth",
    }
)


@dataclass(frozen=True, slots=True)
class Judged(Generic[Key]):
    """A figure of a GPU. `bound`: what it was held against, None if nothing. `why`: why it is too slow, or empty.

    `median`: of the `count` GPUs that it was compared with.
    """

    gpu: Key
    name: str
    value: float
    bound: float | None = None
    wanted: str = ""
    why: str = ""
    median: float = 0.0
    count: int = 0


def judge_figures(
    measured: Mapping[Key, Mapping[str, float]], floors: Mapping[str, Floor], models: Mapping[Key, str]
) -> list[Judged[Key]]:
    """Judge the figures of GPUs, by GPU and name. `floors`: those of a hardware file. `models`: of each GPU."""
    judged: list[Judged[Key]] = []
    for gpu, values in measured.items():
        for name, value in values.items():
            if name not in figures.QUANTITIES:
                continue
            floor = floors.get(name)
            if floor is not None and not (name in SHARED and len(measured) > 1):
                judged.append(_against_floor(gpu, name, value, floor))
                continue
            others = [
                each[name] for other, each in measured.items() if name in each and models.get(other) == models.get(gpu)
            ]
            judged.append(_against_others(gpu, name, value, others))
    return judged


def outlier_bound(values: Sequence[float], *, less_is_better: bool) -> float | None:
    """Return the value beyond which one of these is slow; None for fewer than three. See the rule above.

    >>> outlier_bound([100.0, 101.0, 99.0, 60.0], less_is_better=False)
    79.6
    """
    if len(values) < LEAST_GPUS:
        return None
    middle = statistics.median(values)
    spread = max(_NORMAL * statistics.median(abs(value - middle) for value in values), LEAST_SPREAD * middle)
    distance = max(APART * middle, SPREADS * spread)
    return middle + distance if less_is_better else middle - distance


def _against_floor(gpu: Key, name: str, value: float, floor: Floor) -> Judged[Key]:
    wanted = f"{name} {floor.text}, the floor of the hardware file"
    found = "" if floor.holds(value) else f"{name} is {figures.figure_text(name, value)}"
    return Judged(gpu, name, value, floor.value, wanted, found)


def _against_others(gpu: Key, name: str, value: float, others: Sequence[float]) -> Judged[Key]:
    less = figures.is_time(name)
    bound = outlier_bound(others, less_is_better=less)
    if bound is None:
        return Judged(gpu, name, value)
    middle = statistics.median(others)
    wanted = (
        f"{name} near that of the {len(others)} GPUs of the model, whose median is {figures.figure_text(name, middle)}"
    )
    slow = value > bound if less else value < bound
    why = f"{name} is {figures.figure_text(name, value)}" if slow else ""
    return Judged(gpu, name, value, bound, wanted, why, middle, len(others))


def unit_of(name: str) -> str:
    """Return the unit of the values of a figure: ``s``, ``B/s`` or ``FLOP/s``."""
    if figures.is_time(name):
        return "s"
    return "B/s" if name.endswith("bandwidth") else "FLOP/s"
