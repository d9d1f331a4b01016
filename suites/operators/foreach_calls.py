"""Arguments of the operators on lists of tensors, for torch and for NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import lists
from .foreach import Operation
from .lists import Shape
from .references.formats import Array


class Drawn:
    """Numbers of a type in the range of an operation."""

    def __init__(self, rng: np.random.Generator, operation: Operation, dtype: torch.dtype) -> None:
        self.rng, self.operation, self.dtype = rng, operation, dtype

    def __call__(self, shape: Shape) -> Array:
        low, high = self.operation.low, self.operation.high
        if not self.dtype.is_floating_point and not self.dtype.is_complex:
            first = max(int(low), 0 if not self.dtype.is_signed else -9)
            found: Array = self.rng.integers(first + (low > 0), max(2, int(high)) + 1, shape)
            return found
        found = self.rng.uniform(low, high, shape)
        return found + 1j * self.rng.uniform(low, high, shape) if self.dtype.is_complex else found

    def scalar(self) -> Any:
        """Return a number that its type holds exactly."""
        if not self.dtype.is_floating_point and not self.dtype.is_complex:
            return int(self.rng.integers(1, 4))
        found = float(self.rng.integers(5, 13)) / 4
        return complex(found, float(self.rng.integers(-4, 5)) / 4) if self.dtype.is_complex else found


class Call:
    """The arguments of an operation: in torch's form, and as arrays with one entry per element."""

    def __init__(self, operation: Operation, draw: Drawn, kind: str, device: torch.device) -> None:
        self.first = lists.listed(kind, draw, draw.dtype, device)
        self.others: list[Any] = []
        self.arrays: list[Any] = [self.first.values]
        for given in operation.given:
            self._add(given, draw, kind, device)

    def _add(self, given: str, draw: Drawn, kind: str, device: torch.device) -> None:
        if given == "list":  # other strides than the first list, if that has gaps
            found = lists.listed(kind, draw, draw.dtype, device, "few" if kind == "strided" else "")
            self.others.append(found.tensors)
            self.arrays.append(found.values)
            return
        several = given in ("scalars", "tensors")
        numbers = [draw.scalar() for _ in self.first.sizes] if several else draw.scalar()
        array = np.asarray(numbers, self.first.values.dtype)
        self.arrays.append(np.repeat(array, self.first.sizes) if several else array)
        if given == "tensor":
            numbers = torch.tensor(numbers, dtype=draw.dtype).to(device)
        elif given == "tensors":  # on the host, as torch requires
            numbers = torch.tensor(numbers, dtype=draw.dtype)
        self.others.append(numbers)
