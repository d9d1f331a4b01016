"""Counts torch objects that Python can reach, and the memory of tensors.

The module finds tensors among the objects that Python's garbage collector tracks: each tensor that ever had a Python
object, even if only C++ holds it now. The collector does not track a tensor that only C++ made and holds, such as one
that an operator saved for the backward pass. The memory of such a tensor appears in the counters of malloc and of the
CUDA allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from types import ModuleType
from typing import Any

from harness import _compat


@dataclass(frozen=True, slots=True)
class TorchObjectCounts:
    """The numbers of live torch objects. `tensor_bytes`: the sizes of their storages on the CPU."""

    tensors: int = 0
    tensor_bytes: int = 0
    streams: int = 0
    events: int = 0
    graphs: int = 0
    mempools: int = 0

    def __add__(self, other: TorchObjectCounts) -> TorchObjectCounts:
        return TorchObjectCounts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(TorchObjectCounts))
        )


def count_torch_objects(objects: Sequence[object], torch: ModuleType | None) -> TorchObjectCounts:
    """Count the torch objects among `objects`. There are none if torch is not imported, or not completely."""
    if torch is None or not hasattr(torch, "UntypedStorage"):
        return TorchObjectCounts()
    # Filter by type first, at the speed of C: usually no object needs a closer look. Do not use isinstance: it calls
    # methods of objects and metaclasses, and so may run code of the case.
    names = _counted_classes(torch)
    kinds = {
        kind: next(name for ancestor, name in names.items() if ancestor in kind.__mro__)
        for kind in set(map(type, objects))
        if not names.keys().isdisjoint(kind.__mro__)
    }
    if not kinds:
        return TorchObjectCounts()
    counts = dict.fromkeys(("tensors", "storages", "streams", "events", "graphs", "mempools"), 0)
    sizes: dict[int, int] = {}
    kept = set(map(id, _compat.kept_by_dynamo()))  # depends on the last graph, and does not grow
    with torch._C.DisableTorchFunctionSubclass():
        for item in compress(objects, map(kinds.__contains__, map(type, objects))):
            name = kinds[type(item)]
            if id(item) in kept and name not in ("tensors", "storages"):
                continue
            counts[name] += 1
            if name in ("tensors", "storages"):
                _add_storage(item if name == "storages" else _storage(item), sizes)
    del counts["storages"]
    return TorchObjectCounts(tensor_bytes=sum(sizes.values()), **counts)


def tensors_and_storages(objects: Iterable[object], torch: ModuleType) -> list[Any]:
    """Return the tensors among `objects`, and the storages that belong to none of them."""
    tensors: list[Any] = []
    storages: list[Any] = []
    for item in objects:
        if torch.Tensor in type(item).__mro__:
            tensors.append(item)
        elif torch.UntypedStorage in type(item).__mro__:
            storages.append(item)
    with torch._C.DisableTorchFunctionSubclass():
        storages_of_tensors = {storage._cdata for tensor in tensors if (storage := _storage(tensor)) is not None}
    return tensors + [storage for storage in storages if storage._cdata not in storages_of_tensors]


def _counted_classes(torch: ModuleType) -> dict[type, str]:
    """Return, by class, the counter for its instances and those of its subclasses."""
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
    except (RuntimeError, TypeError, AttributeError):  # sparse tensors, functional tensors and others have none
        return None


def _add_storage(storage: Any, sizes: MutableMapping[int, int]) -> None:
    """Add the bytes of a storage on the CPU under its address, which is the same for all tensors that share it.

    The key is the address of torch's storage object. A query for the address of the data would copy a copy-on-write
    storage.
    """
    if storage is not None and storage.device.type == "cpu":
        sizes[storage._cdata] = storage.nbytes()
