"""Shared memory between objects: which tensors of one object and of another have the same storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def tensors_of(value: object, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor that an object holds, with its path: in containers, as keys, and in attributes.

    Gradients count as well. Classes, functions and modules of Python are not entered.
    """
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
        if value.is_leaf and value.grad is not None:
            yield from tensors_of(value.grad, f"{path}.grad", seen)
    elif isinstance(value, Mapping):
        for number, (key, each) in enumerate(value.items()):
            name = key if isinstance(key, str | int) else number
            yield from tensors_of(key, f"{path}.keys[{number}]", seen)
            yield from tensors_of(each, f"{path}[{name!r}]", seen)
    elif isinstance(value, list | tuple | set):
        for number, each in enumerate(value):
            yield from tensors_of(each, f"{path}[{number}]", seen)
    elif hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] in ("torch", "suites", "collections"):
        for name, each in vars(value).items():
            yield from tensors_of(each, f"{path}.{name}", seen)


def storages(value: object) -> dict[int, str]:
    """Return the addresses of the storages of an object's tensors, each with the path of the first such tensor."""
    found: dict[int, str] = {}
    for path, tensor in tensors_of(value):
        parts = [tensor] if tensor.layout == torch.strided else [tensor._indices(), tensor._values()]
        for part in parts:
            if part.untyped_storage().nbytes():
                found.setdefault(part.untyped_storage().data_ptr(), path)
    return found


def shared(one: object, other: object) -> list[str]:
    """Return the paths, in the first object, of the tensors whose memory both objects use. Both must have tensors."""
    first, second = storages(one), storages(other)
    assert first, "the source has no tensors, so there is nothing to compare"
    assert second, "the copy has no tensors, so there is nothing to compare"
    return sorted(path for address, path in first.items() if address in second)
