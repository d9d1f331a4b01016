"""NVIDIA GPUs and MIG instances, through CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.backends import simulation
from harness.backends.accelerator import DeviceCounters
from harness.backends.backend import Backend

if TYPE_CHECKING:
    from harness.backends.nvml_memory import DriverMemory

MASK = "CUDA_VISIBLE_DEVICES"
INJECT = "CUDA_INJECT"
#: The faults of CUDA's interface, for a real and a simulated runtime.
FAULTS = ("interposer/csrc/faults.def",)

#: The path of each device counter in `torch.cuda.memory_stats_as_nested_dict`.
_DEVICE_COUNTERS = {
    "cuda_allocated": ("allocated_bytes", "all", "current"),
    "cuda_reserved": ("reserved_bytes", "all", "current"),
    "cuda_active_blocks": ("active", "all", "current"),
    "cuda_segments": ("segment", "all", "current"),
}
#: The path of each counter of pinned memory in `torch.cuda.host_memory_stats_as_nested_dict`.
_PINNED_COUNTERS = {
    "pinned_bytes": ("active_bytes", "current"),
    "pinned_reserved": ("allocated_bytes", "current"),
}
#: The first torch that subtracts a pinned block from `active_bytes` when the block is freed.
_COUNTS_FREED_PINNED_MEMORY = (2, 13)
_NO_POOL = (0, 0)
#: The counters that change with each segment that appears or goes.
_SEGMENTS = ("cuda_reserved", "cuda_segments")


class CudaCounters:
    """Reads the counters of torch's CUDA allocators, and, from NVML, the memory of this process outside them."""

    def __init__(self) -> None:
        self._driver: DriverMemory | None = None
        self._segments: Mapping[str, int] = {}
        self._pools: Mapping[str, int] = {}

    def read(self, torch: ModuleType, unreadable: MutableMapping[str, str], *, full: bool) -> dict[str, int]:
        """Return the counters; see `DeviceCounters`. Without `full`, the last count of private pools may serve."""
        if self._driver is None:
            from harness.backends.nvml_memory import (
                DriverMemory,  # pynvml takes 10 ms to import, which only a process that uses CUDA pays
            )

            self._driver = DriverMemory()
        values: dict[str, int] = {}
        for index in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats_as_nested_dict(index)
            _read_counters(
                values, stats, {f"{name}[{index}]": path for name, path in _DEVICE_COUNTERS.items()}, unreadable
            )
        _read_counters(values, torch.cuda.host_memory_stats_as_nested_dict(), _PINNED_COUNTERS, unreadable)
        if torch.__version__ < _COUNTS_FREED_PINNED_MEMORY:
            # Otherwise even a number that is read back from the device would count as a leak.
            values.pop("pinned_bytes", None)
            unreadable["pinned_bytes"] = "torch before 2.13 counts freed blocks as in use"
        values.update(self._count_pools(torch, values, full=full))
        return values | self._driver.read(torch, values, unreadable)

    def _count_pools(self, torch: ModuleType, counters: Mapping[str, int], *, full: bool) -> Mapping[str, int]:
        """Return the number of private pools by device.

        A snapshot takes a millisecond where there are many blocks. As long as the allocator has the same segments, no
        pool has appeared.
        """
        segments = {name: value for name, value in counters.items() if name.startswith(_SEGMENTS)}
        if full or not self._pools or segments != self._segments:
            none = dict.fromkeys((f"cuda_pools[{index}]" for index in range(torch.cuda.device_count())), 0)
            self._pools = none | count_private_pools(torch.cuda.memory_snapshot())
            self._segments = segments
        return self._pools


def _read_counters(
    values: MutableMapping[str, int],
    stats: Mapping[str, Any],
    paths: Mapping[str, Sequence[str]],
    unreadable: MutableMapping[str, str],
) -> None:
    for name, path in paths.items():
        counter: Any = stats
        for key in path:
            counter = counter.get(key) if isinstance(counter, Mapping) else None
        if isinstance(counter, int):
            values[name] = counter
        else:
            unreadable[name] = f"this torch has no counter {'.'.join(path)}"


def count_private_pools(segments: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of private pools by device, as readings. `segments`: from `torch.cuda.memory_snapshot`."""
    owners: dict[int, set[tuple[int, ...]]] = {}
    for segment in segments:
        owner = tuple(segment.get("segment_pool_id", _NO_POOL))
        if owner != _NO_POOL:
            owners.setdefault(segment["device"], set()).add(owner)
    return {f"cuda_pools[{device}]": len(pools) for device, pools in owners.items()}


def torch_uses_cuda(torch: ModuleType) -> bool:
    """Return whether torch uses CUDA in this process, simulated or not. Does not initialise it."""
    return hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


class CudaBackend(Backend):
    """Devices that ``torch.cuda`` serves: NVIDIA GPUs, and, in a subclass, simulated ones."""

    def is_initialized(self, torch: ModuleType) -> bool:
        """Return whether this process uses CUDA GPUs. In a build for HIP they are AMD GPUs."""
        of_hip = getattr(getattr(torch, "version", None), "hip", None) is not None
        return torch_uses_cuda(torch) and simulation.simulated_runtime() is None and not of_hip

    def device_count(self, torch: ModuleType) -> int:
        return int(torch.cuda.device_count())

    def synchronize(self, torch: ModuleType, index: int) -> None:
        torch.cuda.synchronize(index)

    def seed(self, torch: ModuleType, seed: int) -> None:
        torch.cuda.manual_seed_all(seed)

    def empty_cache(self, torch: ModuleType) -> None:
        torch.cuda.empty_cache()

    def faults_struck(self, torch: ModuleType) -> Mapping[str, int]:  # noqa: ARG002
        return simulation.faults_struck()

    def counters(self) -> DeviceCounters:
        return CudaCounters()

    def release_caches(self, torch: ModuleType) -> None:
        release_caches(torch)


def release_caches(torch: ModuleType) -> None:
    """Free memory that ``torch.cuda`` caches per stream or per graph."""
    from harness._compat import release_cuda_caches  # imports pytest, which not every process has

    release_cuda_caches(torch)


#: The meters of torch's objects of ``torch.cuda``, see `Backend`.
OBJECTS = {"cuda_streams": "streams", "cuda_events": "events", "cuda_graphs": "graphs", "cuda_mempools": "mempools"}

BACKEND = CudaBackend(
    kind="cuda",
    inventory="harness.devices.inventory:gpu_inventory",
    noun="GPUs",
    label="",
    no_gpu="",
    uuid_prefixes=("GPU-", "MIG-", "nvml:"),
    mask=MASK,
    device_nodes=("/dev/nvidia-uvm",),
    hardware=True,
    nvml=True,
    ignored_meters=(),
    faults=FAULTS,
    faults_variable=INJECT,
    interposed=True,
    implied={"silicon": True},
    # The driver loads a kernel when it is first launched. On an H100, batches of 10 to 360 cases grew by 6 to 26 KiB
    # per case.
    heap_per_case=24 << 10,
    objects=OBJECTS,
)
