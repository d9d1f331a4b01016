"""Detects each capability of one device. The table in `harness.devices.capabilities` names one function for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.text import single_line
from harness.devices import nvml as nvml_queries
from harness.devices import software
from harness.devices.census import OBSERVATIONS
from harness.devices.device import Detected, Device, Inventory, Version, combinable_devices
from harness.devices.probe import Question
from harness.devices.prober import Prober

BF16_FROM = (8, 0)  # Ampere: the first tensor cores with BF16 and TF32
_ACCELERATOR_GRAPHS_FROM = (2, 13)  # the first torch with torch.accelerator.Graph
FP8_FROM = (8, 9)  # Ada and Hopper: the first tensor cores with FP8

_RANKS_ON_CPU = 8  # as many as the largest common machine has GPUs

_SIMULATED = "simulated"
_NOT_REPORTED = "nvml does not report it"


@dataclass(frozen=True, slots=True)
class DetectionSubject:
    """The subject of a detection: a device, its inventory, and the prober for questions to a child process."""

    inventory: Inventory
    device: Device
    prober: Prober

    @property
    def is_cpu(self) -> bool:
        return not self.device.backend.accelerator

    @property
    def no_gpu(self) -> str:
        """Why the device has no GPU features; empty for a GPU."""
        return self.device.backend.no_gpu

    @property
    def simulated(self) -> bool:
        """Whether the device is a simulated GPU, which has the features of a GPU but no driver."""
        return self.device.backend.software and not self.no_gpu

    @property
    def together(self) -> tuple[Device, ...]:
        """The devices that one case on this device can get together."""
        group = combinable_devices(self.inventory.accelerators)
        return group if self.device in group else (self.device,)


Detect = Callable[[DetectionSubject], Detected]


def detect_model(subject: DetectionSubject) -> Detected:
    if not subject.is_cpu:
        return Detected(subject.device.name)
    name = processor_name()
    return Detected(name, "" if name else "not in /proc/cpuinfo")


def detect_devices(subject: DetectionSubject) -> Detected:
    if subject.is_cpu:
        return Detected(1, "cpu")
    together = combinable_devices(subject.inventory.accelerators)
    limit = "; a process sees only one mig instance" if any(gpu.mig_parent for gpu in together) else ""
    return Detected(len(together), f"{subject.device.kind}{limit}")


def detect_ranks(subject: DetectionSubject) -> Detected:
    if subject.is_cpu:
        return Detected(_RANKS_ON_CPU, "processes on the cpu")
    return detect_devices(subject)


def detect_accelerator(subject: DetectionSubject) -> Detected:
    """Detect whether torch serves the device.

    It does if the device is of the kind of its build, or of a loaded backend.
    """
    if not subject.device.backend.nvml and not subject.is_cpu:
        return Detected(True)
    if subject.is_cpu:
        return Detected(False, subject.no_gpu)
    built = software.torch_cuda_version()
    return Detected(True) if built.value is not None else Detected(False, built.detail)


def detect_accelerator_graphs(subject: DetectionSubject) -> Detected:
    if subject.is_cpu:
        return Detected(False, subject.no_gpu)
    if (seen := _observed(subject, "accelerator_graphs")) is not None:
        return seen
    if subject.no_gpu:  # software devices have them if torch does
        release = software.torch_version().value
        return Detected(isinstance(release, tuple) and release >= _ACCELERATOR_GRAPHS_FROM)
    return software.cuda_accelerator_graphs()


def detect_process_groups(subject: DetectionSubject) -> Detected:
    """Detect the backend of torch.distributed: gloo for the CPU, NCCL for CUDA, else the one that is registered."""
    if subject.is_cpu:
        return Detected(True)
    if (seen := _observed(subject, "process_groups")) is not None:
        return seen
    library = detect_library("nccl", subject)
    return Detected(library.value is not None, "" if library.value is not None else f"no NCCL: {library.detail}")


def detect_observed(name: str, *, on_cpu: Detected) -> Detect:
    """Return the detection of a fact that the CPU has or lacks, that GPUs have, and that a census observes."""

    def detect(subject: DetectionSubject) -> Detected:
        if subject.is_cpu:
            return on_cpu
        return _observed(subject, name) or Detected(True)

    return detect


def _observed(subject: DetectionSubject, name: str) -> Detected | None:
    """Return what was observed of the device; None if nothing was."""
    seen = subject.device.observed.get(name)
    if seen is None:
        return None
    return Detected(seen, "" if seen else OBSERVATIONS[name].lacks.format(kind=subject.device.kind))


def detect_silicon(subject: DetectionSubject) -> Detected:
    backend = subject.device.backend
    return Detected(backend.hardware and not backend.host_kernels, backend.no_gpu or backend.label)


def detect_device_count(subject: DetectionSubject) -> Detected:
    return Detected(1 if subject.is_cpu else len(subject.inventory.accelerators), subject.device.kind)


def detect_compute_capability(subject: DetectionSubject) -> Detected:
    if subject.no_gpu:
        return Detected(None, subject.no_gpu)
    return Detected(subject.device.compute_capability, "" if subject.device.compute_capability else _NOT_REPORTED)


def detect_memory(subject: DetectionSubject) -> Detected:
    if subject.is_cpu:
        return Detected(host_memory(), "of the host")
    unknown = _NOT_REPORTED if subject.device.backend.nvml else "torch does not report it"
    return Detected(subject.device.memory, "" if subject.device.memory is not None else unknown)


def detect_free_memory(subject: DetectionSubject) -> Detected:
    if subject.device.backend.software:
        return Detected(subject.device.memory, "of a software device; each process has its own")
    if not subject.is_cpu and not subject.device.backend.nvml:
        return Detected(None, "only nvml reports it")
    if not subject.is_cpu:
        return subject.prober.first_reading("free_memory", lambda: nvml_queries.query_free_memory(subject.device))
    free = host_free_memory()
    return Detected(free, "of the host" if free is not None else "not in /proc/meminfo")


def detect_peer_access(subject: DetectionSubject) -> Detected:
    if reason := _no_peers(subject):
        return Detected(False, reason)
    if subject.simulated:
        return Detected(True, _SIMULATED)
    return nvml_queries.query_peer_access(subject.together)


def detect_peer_links(subject: DetectionSubject) -> Detected:
    if reason := _no_peers(subject):
        return Detected(None, reason)
    if subject.simulated:
        return Detected("none", _SIMULATED)
    return nvml_queries.query_peer_links(subject.together)


def _no_peers(subject: DetectionSubject) -> str:
    """Return why the device has no peers, or an empty text."""
    if subject.no_gpu:
        return subject.no_gpu
    if subject.device.mig_parent is not None:
        return "a process sees only one mig instance"
    return "there is only one gpu" if len(subject.together) < 2 else ""


def detect_nvlink(subject: DetectionSubject) -> Detected:
    if reason := _no_nvlink(subject):
        return Detected(False, reason)
    return nvml_queries.query_nvlink(subject.device)


def detect_fabric(subject: DetectionSubject) -> Detected:
    if reason := _no_nvlink(subject):
        return Detected(False, reason)
    return nvml_queries.query_fabric(subject.device)


def _no_nvlink(subject: DetectionSubject) -> str:
    """Return why the device cannot have NVLink, or an empty text."""
    if subject.no_gpu:
        return subject.no_gpu
    if subject.device.mig_parent is not None:
        return "the device is a mig instance, and these do not use nvlink"
    return _SIMULATED if subject.simulated else ""


def detect_ecc(subject: DetectionSubject) -> Detected:
    if subject.no_gpu:
        return Detected(None, subject.no_gpu)
    return Detected(subject.device.ecc, "" if subject.device.ecc is not None else "the device has no ecc mode")


def from_architecture(first: Version) -> Detect:
    """Return the detection of a feature that GPUs have from this compute capability on."""

    def detect(subject: DetectionSubject) -> Detected:
        if subject.no_gpu:
            return Detected(False, subject.no_gpu)
        own = subject.device.compute_capability
        if own is None:
            return Detected(None, "nvml does not report the compute capability")
        if own >= first:
            return Detected(True)
        return Detected(False, f"compute capability {_dotted(own)}, needs {_dotted(first)}")

    return detect


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def from_driver(name: str) -> Detect:
    """Return the detection of a feature of the driver, which torch's CUDA allocator alone uses."""

    def detect(subject: DetectionSubject) -> Detected:
        if subject.no_gpu:
            return Detected(False, subject.no_gpu)
        if (built := software.torch_cuda_version()).value is None:
            return Detected(False, built.detail)
        if subject.simulated:
            return Detected(True, _SIMULATED)
        return subject.prober.ask(Question.DRIVER)[name]

    return detect


def detect_nvml(subject: DetectionSubject) -> Detected:
    return Detected(subject.inventory.nvml_error is None, subject.inventory.nvml_error or "")


def from_nvml(version: str | None, inventory: Inventory) -> Detected:
    """Return a version that NVML reports."""
    release = None if version is None else software.parse_release(version)
    return Detected(release, "" if release else inventory.nvml_error or _NOT_REPORTED)


def detect_library(name: str, subject: DetectionSubject) -> Detected:
    """Return the version from metadata, else from the library itself if there is a GPU and torch is built for CUDA."""
    installed = software.wheel_version(f"nvidia-{name}")
    if (
        installed.value is not None
        or subject.no_gpu
        or subject.simulated
        or software.torch_cuda_version().value is None
    ):
        return installed
    return subject.prober.ask(Question.LIBRARIES)[name]


# The processor and memory of the host that this process may use

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group: the files with its limit, usage and statistics. `reclaimable` is a field of `statistics`."""

    limit: Path
    usage: Path
    statistics: Path
    reclaimable: str


def host_memory(cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Return bytes of memory: of the host, or of this process's control group if its limit is lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for group in _groups(cgroups, own) if (limit := _number(group.limit)) is not None]
    return min(limits)


def host_free_memory(
    cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS, meminfo: Path = Path("/proc/meminfo")
) -> int | None:
    """Return bytes of memory available now: the lowest of the host and each control group of this process.

    Reclaimable file pages count as free. None if the kernel does not report it.
    """
    available = _field(meminfo, "MemAvailable:")
    if available is None:
        return None
    rooms = [available * 1024]
    for group in _groups(cgroups, own):
        limit, used = _number(group.limit), _number(group.usage)
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used + (_field(group.statistics, group.reclaimable) or 0)))
    return min(rooms)


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the processor's product name; None on architectures whose kernel does not report it."""
    for line in _lines(cpuinfo):
        name, separator, value = line.partition(":")
        if separator and name.strip() == "model name" and value.strip():
            return single_line(value, 200)
    return None


def _groups(cgroups: Path, own: Path) -> list[_Group]:
    """Return the group of this process and all its parents, in both layouts (cgroup v1 and v2).

    A machine has one or none.
    """
    names = {"/", *(line.split(":", 2)[2] for line in _lines(own) if line.count(":") >= 2)}
    groups = []
    for name in names:
        for level in (Path(name), *Path(name).parents):
            below = str(level).lstrip("/")
            new, old = cgroups / below, cgroups / "memory" / below
            groups += [
                _Group(new / "memory.max", new / "memory.current", new / "memory.stat", "inactive_file"),
                _Group(
                    old / "memory.limit_in_bytes",
                    old / "memory.usage_in_bytes",
                    old / "memory.stat",
                    "total_inactive_file",
                ),
            ]
    return groups


def _number(file: Path) -> int | None:
    """Return the number in the file. None if the file has no number: "max" means no limit."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _field(file: Path, name: str) -> int | None:
    """Return the number after `name` at the start of a line."""
    for line in _lines(file):
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isascii() and words[1].isdigit():
            return int(words[1])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []  # containers and other layouts lack some of these files
