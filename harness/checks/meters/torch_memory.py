"""What torch tells of its memory: tensors and other objects that Python can reach.

Tensors are found among the objects of Python's collector. It tracks each tensor that ever had a Python object, even
one that only C++ holds now. A tensor made and held by C++ alone (saved for a backward pass inside an operator, say) is
not among them: the C library's and the CUDA allocator's counters see its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from types import ModuleType
from typing import Any


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
