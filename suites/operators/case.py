"""Helpers for the cases of several files: an operator's samples of each type of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import _torch_private, known, samples, types
from .references import formats


def types_to_try(name: str, group: str, device: torch.device) -> tuple[Any, list[torch.dtype]]:
    """Return the operator and the types of the group that are not known to deviate.

    If all of them are, the case ends as an expected failure; `test_deviations.py` has a case for each.
    """
    info = _torch_private.operator(name)
    found = types.types_of(info, group, device)
    left = [each for each in found if not known.deviates(name, formats.name_of(each), device)]
    if not left:
        pytest.xfail(f"{name} is known to deviate for {group}: {known.VALUES[name].reason}")
    return info, left


def spread(
    name: str,
    group: str,
    device: torch.device,
    count: int | None = None,
    *,
    gradient: bool = False,
    apart: bool = False,
) -> Iterator[tuple[Any, Any, torch.dtype]]:
    """Yield the operator, `count` samples in all, and their types, which take turns; None for all samples.

    `apart`: each type has different samples, for properties that are the same in all types, such as formulas of
    gradients.
    """
    info, kinds = types_to_try(name, group, device)
    first = 0
    for place, dtype in enumerate(kinds):
        share = samples.MOST if count is None else max(1, count // len(kinds) + (place < count % len(kinds)))
        for each in samples.samples(info, dtype, share, gradient=gradient, first=first):
            if not (gradient and known.gradient_deviates(name, each, dtype, device)):
                yield info, each, dtype
        first += share if apart else 0
