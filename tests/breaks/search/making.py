"""Make a break in this process from its name: of the catalogue, a mutant, a place in torch, or a fault."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.sim.interposer import front
from tests.breaks.breaks import Break, BreakError
from tests.breaks.catalogue import catalogue
from tests.breaks.mutants import applying, campaign
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.search import generated


class Making:
    """Makes breaks on a kind of device. `root`: the folder that contains torch.

    What a break needs to know of torch is looked up at the first use, and kept.
    """

    def __init__(self, device: str, root: Path) -> None:
        self._device = device
        self._root = root
        self._living: Mapping[tuple[str, str], Any] | None = None
        self._mutants: dict[str, list[Mutant]] = {}

    def know_living_functions(self) -> None:
        """Look for the functions of torch that mutants change, before `gc.freeze` hides them."""
        self._living = applying.living_functions(self._root.glob("torch/**/*.py"))

    @functools.cached_property
    def functions(self) -> Mapping[str, list[tuple[Any, str]]]:
        return generated.functions()

    @functools.cached_property
    def attributes(self) -> Mapping[str, Any]:
        return generated.attributes()

    @functools.cached_property
    def written(self) -> Mapping[str, Break]:
        """The breaks of the catalogue for this kind of device."""
        return {name: entry for name, entry in catalogue().items() if entry.device == self._device and entry.apply}

    def mutants_of(self, path: str) -> list[Mutant]:
        """Return the mutants of a file of torch; none if it cannot be parsed."""
        if path not in self._mutants:
            try:
                self._mutants[path] = campaign.mutants_of_file(path, self._root / path, os.environ)
            except (BreakError, SyntaxError, OSError):
                self._mutants[path] = []
        return self._mutants[path]

    def made(self, name: str) -> Callable[[], object]:
        """Return the function that makes a break. Raise BreakError."""
        kind, _, rest = name.partition(" ")
        if kind == "operator":
            return generated.operator_break(rest, self._device)
        if kind == "function":
            return generated.function_break(rest, self.functions)
        if kind == "attribute":
            return generated.attribute_break(rest, self.attributes)
        if kind == "fault":
            return functools.partial(_inject, rest, self._device)
        if kind == "mutant":
            return functools.partial(self._change, self._mutant(rest))
        apply = self.written[name].apply if name in self.written else None
        if apply is None:
            raise BreakError(f"there is no break named {name!r} for the device {self._device!r}")
        return apply

    def _mutant(self, words: str) -> Mutant:
        path, _, name = words.rpartition(":")
        for mutant in self.mutants_of(path):
            if mutant.name == name:
                return mutant
        raise BreakError(f"this release of torch has no mutant {words!r}")

    def _change(self, mutant: Mutant) -> None:
        file = self._root / mutant.path
        applying.apply(mutant, file, applying.living_functions([file]) if self._living is None else self._living)


def name_of(mutant: Mutant) -> str:
    """Return the name of a mutant as a break."""
    return f"mutant {mutant.path}:{mutant.name}"


def names_of(breaks: Iterable[str | Mutant]) -> list[str]:
    """Return the names of breaks."""
    return [name_of(each) if isinstance(each, Mutant) else each for each in breaks]


def _inject(fault: str, device: str) -> None:
    if device == "soft":
        import torch

        torch.soft.inject(fault)  # type: ignore[attr-defined]
    else:
        front.inject_into_this_process([fault])
