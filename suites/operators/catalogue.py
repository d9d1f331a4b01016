"""The table of operators from which the cases are made. `python -m suites.operators.generate` writes it.

Collecting the cases must not import torch's own catalogue, which takes seconds and initializes CUDA.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("catalogue.txt")

#: Operators whose reference takes a hundred times as long as others. Each has a sibling with the same kernel or
#: formula. Six samples of values are compared, and the default run has neither gradients nor many sizes.
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


#: The requirements of a group whose types torch declares for one kind of device only. A simulated CUDA computes with
#: the kernels of the CPU, which lack those that only CUDA has.
_NEEDS = {
    "cpu": pytest.mark.requires(not_={"device": "cuda"}),
    "cuda": pytest.mark.requires(device="cuda", silicon=True),
}
#: Operators that return the statistics of a batch or layer. For 16-bit types, the reference computes what the CPU
#: returns: statistics of the type of the weight or input. Those of CUDA are float32.
_WITH_STATISTICS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm")
#: Further requirements for the values of an operator and a group.
_VALUES_NEED = {
    **{(name, "half"): pytest.mark.requires(not_={"device": "cuda"}) for name in _WITH_STATISTICS},
    # Only the CPU has its kernel.
    **{("sparse.mm.reduce", group): pytest.mark.requires(not_={"accelerator": True}) for group in ("float", "half")},
    # The CPU and CUDA have sparse tensors.
    **{
        (name, group): pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}])
        for name in ("sparse.sampled_addmm", "to_sparse")
        for group in ("float", "half", "complex", "int")
    },
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An operator: its name in torch's catalogue, the groups of its types, and the aspects that apply to it.

    `only`: the groups for which torch declares types for one kind of device only, with that kind: `cpu` or `cuda`. The
    table has them as `int:cpu`.
    """

    name: str
    groups: tuple[str, ...]
    aspects: tuple[str, ...]
    only: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        groups = [f"{each}:{self.only[each]}" if each in self.only else each for each in self.groups]
        return f"{self.name} {','.join(groups)} {','.join(self.aspects)}"

    @classmethod
    def parse(cls, line: str) -> Entry:
        """Return the operator of a line of the table."""
        name, groups, aspects = line.split(" ")
        parts = [each.partition(":") for each in groups.split(",")]
        only = {group: kind for group, _, kind in parts if kind}
        return cls(name, tuple(group for group, _, _ in parts), tuple(aspects.split(",")), only)

    @property
    def kind(self) -> str:
        """The only kind of device for which torch declares types, or an empty string."""
        kinds = {self.only.get(each, "") for each in self.groups}
        return kinds.pop() if len(kinds) == 1 else ""


@cache
def entries() -> tuple[Entry, ...]:
    """Return all operators of the table, in its order."""
    lines = FILE.read_text(encoding="ascii").splitlines()
    return tuple(Entry.parse(line) for line in lines if line and not line.startswith("#"))


def by_operator(
    aspect: str,
    *,
    extended: bool | Collection[str] = False,
    without: Collection[str] = (),
    needs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the mark that makes a case of each operator with an aspect.

    `extended`: all operators, or those with these names. `without`: operators to leave out. `needs`: a further mark by
    the name of the operator.
    """
    return pytest.mark.parametrize("name", list(_operators(aspect, extended, without, needs or {})))


def _operators(
    aspect: str, extended: bool | Collection[str], without: Collection[str], needs: Mapping[str, Any]
) -> Iterator[Any]:
    for entry in entries():
        if aspect not in entry.aspects or entry.name in without:
            continue
        more = extended if isinstance(extended, bool) else entry.name in extended
        marks = _marks(entry.name, more)
        if entry.kind and aspect != "errors":  # a call without a kernel is an error too
            marks.append(_NEEDS[entry.kind])
        if entry.name in needs:
            marks.append(needs[entry.name])
        yield pytest.param(entry.name, id=entry.name, marks=marks)


def by_operator_of(group: str, aspect: str, *, without: Collection[str] = ()) -> Any:
    """Return the mark that makes a case of each operator with an aspect and `group` among its further groups of types.

    If it is the only group, `by_group` makes the case. `without`: operators to leave out.
    """
    found = [each for each in entries() if aspect in each.aspects and group in each.groups[1:]]
    parameters = [
        pytest.param(entry.name, id=entry.name, marks=[*_marks(entry.name, False), *_needs(entry, group, aspect)])
        for entry in found
        if entry.name not in without
    ]
    return pytest.mark.parametrize("name", parameters)


def by_group(aspect: str, *, quick: Sequence[str], without: Collection[str] = ()) -> Any:
    """Return the mark that makes a case of each operator and group. Only the groups `quick` are in the default run.

    `without`: operators to leave out.
    """
    return pytest.mark.parametrize(("name", "group"), list(_groups(aspect, quick, without)))


def _groups(aspect: str, quick: Sequence[str], without: Collection[str]) -> Iterator[Any]:
    for entry in entries():
        if aspect not in entry.aspects or entry.name in without:
            continue
        for group in entry.groups:
            more = group not in quick and entry.groups[0] != group
            marks = [*_marks(entry.name, more), *_needs(entry, group, aspect)]
            yield pytest.param(entry.name, group, id=f"{entry.name}-{group}", marks=marks)


def _needs(entry: Entry, group: str, aspect: str) -> list[Any]:
    found = [_NEEDS[entry.only[group]]] if group in entry.only else []
    if aspect == "values" and (entry.name, group) in _VALUES_NEED:
        found.append(_VALUES_NEED[entry.name, group])
    return found


def _marks(name: str, extended: bool) -> list[Any]:
    plain = (
        name.partition(".")[0]
        if not name.startswith(("nn.", "linalg.", "fft.", "special.", "masked.", "torch.", "signal."))
        else name
    )
    found = [pytest.mark.operator(name) if plain == name else pytest.mark.operator(name, plain)]
    return [*found, pytest.mark.extended] if extended else found
