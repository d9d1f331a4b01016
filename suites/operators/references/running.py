"""Run an operator with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..nested import mapped
from . import all as _all
from . import formats
from .interpreter import Host, Interpreter, host

__all__ = ["disturbed", "on_reference", "run"]
_ = _all


def on_reference(value: Any) -> Any:
    """Return a structure with `Host` objects for the tensors in the host's memory."""

    def convert(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or isinstance(each, Host):
            return each
        return host(each).requires_grad_(each.requires_grad)

    return mapped(convert, value)


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function of `Host` objects, computed by NumPy."""
    with Interpreter():
        return function(*args, **kwargs)


def disturbed(value: Any, seed: int, roundings: float = 1.0) -> Any:
    """Return a structure whose floats are moved by up to `roundings` roundings of their type."""
    draw = np.random.default_rng(seed)

    def move(each: Any) -> Any:
        if not isinstance(each, Host) or each.array.dtype.kind not in "fc":
            return each
        unit = formats.unit(each.dtype) * roundings
        with np.errstate(all="ignore"):
            moved = each.array * (1 + unit * draw.choice([-1.0, 1.0], each.array.shape))
        return Host(np.asarray(moved, each.array.dtype), each.dtype).requires_grad_(each.requires_grad)

    return mapped(move, value)


def all_disturbed(function: Callable[[Any], Any], value: Any, roundings: float = 1.0, count: int = 3) -> Sequence[Any]:
    """Return the results of `function` for inputs that are disturbed in several ways."""
    found = []
    for seed in range(count):
        try:
            found.append(run(function, disturbed(value, seed, roundings)))
        except (ValueError, RuntimeError, np.linalg.LinAlgError):
            continue
    return found
