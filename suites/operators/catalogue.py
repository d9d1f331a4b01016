"""The table of operators from which the cases are made. `python -m suites.operators.generate` writes it.

Collecting the cases must not import torch's own catalogue, which takes seconds and asks for CUDA.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("catalogue.txt")

#: Operators whose reference takes a hundred times as long as that of others, each beside one with the same kernel or
#: formula: the values of six samples are compared, and in the default run neither gradients nor many sizes.
COSTLY = frozenset(
    {
        "grid_sampler_3d",
        "mvlgamma.mvlgamma_p_3",
        "mvlgamma.mvlgamma_p_5",
        "nn.functional.grid_sample",
        "nn.functional.interpolate.bicubic",
        "nn.functional.interpolate.trilinear",
        "polygamma.polygamma_n_2",
        "polygamma.polygamma_n_3",
        "polygamma.polygamma_n_4",
        "special.modified_bessel_k0",
        "special.modified_bessel_k1",
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An operator: its name in torch's catalogue, the groups of its types, and the aspects that apply to it."""

    name: str
    groups: tuple[str, ...]
    aspects: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {','.join(self.groups)} {','.join(self.aspects)}"


@cache
def entries() -> tuple[Entry, ...]:
    """Return all operators of the table, in its order."""
    lines = FILE.read_text(encoding="ascii").splitlines()
    parts = [line.split(" ") for line in lines if line and not line.startswith("#")]
    return tuple(Entry(name, tuple(groups.split(",")), tuple(aspects.split(","))) for name, groups, aspects in parts)


def by_operator(aspect: str, *, extended: bool | Collection[str] = False) -> Any:
    """Return the mark that makes a case of each operator with an aspect. `extended`: all, or those with these names."""
    return pytest.mark.parametrize("name", list(_operators(aspect, extended)))


def _operators(aspect: str, extended: bool | Collection[str]) -> Iterator[Any]:
    for entry in entries():
        if aspect in entry.aspects:
            more = extended if isinstance(extended, bool) else entry.name in extended
            yield pytest.param(entry.name, id=entry.name, marks=_marks(entry.name, more))


def by_operator_of(group: str, aspect: str, *, without: Collection[str] = ()) -> Any:
    """Return the mark that makes a case of each operator with an aspect whose further groups of types have `group`.

    Where it is the only group, `by_group` makes the case. `without`: these operators are left out.
    """
    found = [each for each in entries() if aspect in each.aspects and group in each.groups[1:]]
    names = [entry.name for entry in found if entry.name not in without]
    return pytest.mark.parametrize("name", [pytest.param(name, id=name, marks=_marks(name, False)) for name in names])


def by_group(aspect: str, *, quick: Sequence[str]) -> Any:
    """Return the mark that makes a case of each operator and group. Only the groups `quick` are in the default run."""
    return pytest.mark.parametrize(("name", "group"), list(_groups(aspect, quick)))


def _groups(aspect: str, quick: Sequence[str]) -> Iterator[Any]:
    for entry in entries():
        if aspect not in entry.aspects:
            continue
        for group in entry.groups:
            more = group not in quick and entry.groups[0] != group
            yield pytest.param(entry.name, group, id=f"{entry.name}-{group}", marks=_marks(entry.name, more))


def _marks(name: str, extended: bool) -> list[Any]:
    plain = (
        name.partition(".")[0]
        if not name.startswith(("nn.", "linalg.", "fft.", "special.", "masked.", "torch.", "signal."))
        else name
    )
    found = [pytest.mark.operator(name) if plain == name else pytest.mark.operator(name, plain)]
    return [*found, pytest.mark.extended] if extended else found
