"""What torch tells of its memory: tensors that Python can reach, and the counters of its CUDA allocators.

Tensors are found among the objects of Python's collector. It tracks each tensor that ever had a Python object, even
one that only C++ holds now. A tensor made and held by C++ alone (saved for a backward pass inside an operator, say) is
not among them: the C library's and the CUDA allocator's counters see its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from types import ModuleType
from typing import Any

#: Where each counter of a device stands in `torch.cuda.memory_stats_as_nested_dict`.
_DEVICE_COUNTERS = {
    "cuda_allocated": ("allocated_bytes", "all", "current"),
    "cuda_reserved": ("reserved_bytes", "all", "current"),
    "cuda_active_blocks": ("active", "all", "current"),
    "cuda_segments": ("segment", "all", "current"),
}
#: Where each counter of pinned memory stands in `torch.cuda.host_memory_stats_as_nested_dict`.
_PINNED_COUNTERS = {
    "pinned_bytes": ("active_bytes", "current"),
    "pinned_reserved": ("allocated_bytes", "current"),
}
_NO_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class Census:
    """Objects of torch's that are alive. `tensor_bytes` are those of their storages on the CPU."""

    tensors: int = 0
    tensor_bytes: int = 0
    streams: int = 0
    events: int = 0
    graphs: int = 0
    mempools: int = 0

    def __add__(self, other: Census) -> Census:
        return Census(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Census)))


def census(objects: Sequence[object], torch: ModuleType | None) -> Census:
    """Count what is torch's among `objects`; nothing is, where torch has not been imported (or not wholly)."""
    if torch is None or not hasattr(torch, "UntypedStorage"):
        return Census()
    # By type first, at the speed of C: mostly there is nothing to look at one by one. Not isinstance, which asks the
    # objects and their metaclasses, and so runs a case's code.
    names = _names(torch)
    kinds = {
        kind: next(name for ancestor, name in names.items() if ancestor in kind.__mro__)
        for kind in set(map(type, objects))
        if not names.keys().isdisjoint(kind.__mro__)
    }
    if not kinds:
        return Census()
    counts = dict.fromkeys(("tensors", "storages", "streams", "events", "graphs", "mempools"), 0)
    sizes: dict[int, int] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for thing in compress(objects, map(kinds.__contains__, map(type, objects))):
            name = kinds[type(thing)]
            counts[name] += 1
            if name in ("tensors", "storages"):
                _weigh(thing if name == "storages" else _storage(thing), sizes)
    del counts["storages"]
    return Census(tensor_bytes=sum(sizes.values()), **counts)


def owners(objects: Iterable[object], torch: ModuleType) -> list[Any]:
    """Those of `objects` that are tensors, and the storages that belong to none of these."""
    found: list[Any] = []
    storages: list[Any] = []
    for thing in objects:
        if torch.Tensor in type(thing).__mro__:
            found.append(thing)
        elif torch.UntypedStorage in type(thing).__mro__:
            storages.append(thing)
    with torch._C.DisableTorchFunctionSubclass():
        known = {storage._cdata for tensor in found if (storage := _storage(tensor)) is not None}
    return found + [storage for storage in storages if storage._cdata not in known]


def _names(torch: ModuleType) -> dict[type, str]:
    """What is counted, by class: as what, the subclasses of it as well."""
    cuda = torch.cuda
    return {
        torch.Tensor: "tensors",
        torch.UntypedStorage: "storages",
        cuda.Stream: "streams",
        cuda.Event: "events",
        cuda.CUDAGraph: "graphs",
        cuda.MemPool: "mempools",
    }


def _storage(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, TypeError, AttributeError):  # sparse, functional and the like have none
        return None


def _weigh(storage: Any, sizes: MutableMapping[int, int]) -> None:
    """Enter the bytes of a storage on the CPU under its address, the same through whichever tensor it is seen.

    The address of torch's own record of it: to ask for that of the data would copy a storage that is copied on write.
    """
    if storage is not None and storage.device.type == "cpu":
        sizes[storage._cdata] = storage.nbytes()


def cuda_is_awake(torch: ModuleType) -> bool:
    """Whether this process uses CUDA; asking does not make it."""
    return hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


def cuda_memory(torch: ModuleType, blind: MutableMapping[str, str], *, pools: bool) -> dict[str, int]:
    """The allocators' counters, of each device and of pinned memory; `pools` asks for private pools too.

    Of a process that uses CUDA only. Counters that this torch does not have go to `blind`.
    """
    values: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(index)
        _enter(values, stats, {f"{name}[{index}]": path for name, path in _DEVICE_COUNTERS.items()}, blind)
    _enter(values, torch.cuda.host_memory_stats_as_nested_dict(), _PINNED_COUNTERS, blind)
    if pools:
        values.update(dict.fromkeys((f"cuda_pools[{index}]" for index in range(torch.cuda.device_count())), 0))
        values.update(private_pools(torch.cuda.memory_snapshot()))
    return values


def _enter(
    values: MutableMapping[str, int],
    stats: Mapping[str, Any],
    paths: Mapping[str, Sequence[str]],
    blind: MutableMapping[str, str],
) -> None:
    for name, path in paths.items():
        found: Any = stats
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, int):
            values[name] = found
        else:
            blind[name] = f"this torch has no counter {'.'.join(path)}"


def private_pools(segments: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many private pools own `segments`, those of `torch.cuda.memory_snapshot`, as readings by device."""
    owners: dict[int, set[tuple[int, ...]]] = {}
    for segment in segments:
        owner = tuple(segment.get("segment_pool_id", _NO_POOL))
        if owner != _NO_POOL:
            owners.setdefault(segment["device"], set()).add(owner)
    return {f"cuda_pools[{device}]": len(found) for device, found in owners.items()}
