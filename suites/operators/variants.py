"""Overloads of aten that no Python function calls, and the operator calls that give them arguments.

`max_pool2d_with_indices.out` takes the arguments of `max_pool2d_with_indices`, and the tensors for the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import _torch_private, case, comparison, nested, samples, types

FILE = Path(__file__).with_name("variants.txt")


@dataclass(frozen=True, slots=True)
class Variant:
    """An overload, the overload that returns the same results, and the operator of the catalogue that calls it."""

    name: str
    sibling: str
    operator: str

    def __str__(self) -> str:
        return f"{self.name} {self.sibling} {self.operator}"


@cache
def _lines() -> tuple[Variant, ...]:
    lines = FILE.read_text(encoding="ascii").splitlines()
    return tuple(Variant(*line.split(" ")) for line in lines if line and not line.startswith("#"))


def variants() -> tuple[Variant, ...]:
    """Return the overloads that write into an argument."""
    return tuple(each for each in _lines() if each.name != each.sibling)


def derivatives() -> tuple[Variant, ...]:
    """Return the overloads that compute gradients: each is its own sibling."""
    return tuple(each for each in _lines() if each.name == each.sibling)


def overload(name: str) -> Any:
    """Return the overload `base.name` of aten; skip the case if this release of torch has none."""
    base, _, which = name.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), which or "default", None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no aten::{name}")
    return found


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a functional overload: its arguments by name, as they were before the call, and its results."""

    arguments: dict[str, Any]
    results: list[torch.Tensor]


class Called(TorchDispatchMode):
    """The names of the called overloads of aten."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


class Calls(TorchDispatchMode):
    """Keeps the first calls of one overload, up to a number."""

    def __init__(self, wanted: Any, most: int) -> None:
        super().__init__()
        self.found: list[Call] = []
        self._wanted, self._most = wanted, most

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is not self._wanted or len(self.found) == self._most:
            return func(*args, **named)
        names = [each.name for each in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **named}
        kept = nested.mapped(lambda each: each.detach().clone() if isinstance(each, torch.Tensor) else each, given)
        result = func(*args, **named)
        self.found.append(Call(kept, [each.detach().clone() for each in comparison.tensors(result)]))
        return result


def run(info: Any, given: Any) -> None:
    """Call an operator, and its gradient if its results have one."""
    result = info.op(given[0], *given[1], **given[2])
    found = [each for each in nested.leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    if found:
        torch.autograd.backward(found, [torch.ones_like(each) for each in found])


def calls(variant: Variant, device: torch.device, most: int) -> list[Call]:
    """Return calls of the functional sibling, made by the operator's samples on the device."""
    info = _torch_private.operator(variant.operator)
    recorder = Calls(overload(variant.sibling), most)
    group = types.first_group(types.supported(info, device), variant.operator)
    for dtype in case.types_to_try(variant.operator, group, device)[1]:
        smooth = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        for each in samples.samples(info, dtype, 12, gradient=smooth):
            with samples.seeded(7), recorder:
                run(info, samples.move(samples.arguments(each), device))
            if len(recorder.found) == most:
                return recorder.found
    return recorder.found


def written(target: Any) -> list[str]:
    """Return the names of the arguments that an overload writes."""
    return [each.name for each in target._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
