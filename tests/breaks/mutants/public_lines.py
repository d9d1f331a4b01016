"""The lines of public functions of a module, and how many of them cases run.

Pure: takes sources and records, returns shares.

A function is public if neither its name nor an enclosing name begins with an underscore. Methods with two underscores
on both sides are public too. Nested functions belong to their public function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CodeType


@dataclass(frozen=True, slots=True)
class FunctionReach:
    """A public function: its lines with instructions, without that of its name, and the lines that some case runs."""

    name: str
    lines: frozenset[int]
    reached: frozenset[int]

    @property
    def missed(self) -> list[int]:
        """The lines that no case runs, in order."""
        return sorted(self.lines - self.reached)


@dataclass(frozen=True, slots=True)
class ModuleReach:
    """A module, by its file relative to the folder that contains the package, and its public functions."""

    path: str
    functions: tuple[FunctionReach, ...]

    @property
    def lines(self) -> int:
        return len(frozenset[int]().union(*(function.lines for function in self.functions)))

    @property
    def reached(self) -> int:
        return len(frozenset[int]().union(*(function.reached for function in self.functions)))


def reach_of(path: str, source: str, ran: Set[int]) -> ModuleReach:
    """Return the public functions of a module with the lines `ran`. Raise SyntaxError."""
    by_function: dict[str, set[int]] = {}
    for code in _functions(compile(source, path, "exec")):
        name = code.co_qualname.partition(".<locals>")[0]
        if _is_public(name):
            numbers = {number for _, _, number in code.co_lines() if number is not None}
            by_function.setdefault(name, set()).update(numbers - {code.co_firstlineno})
    return ModuleReach(
        path,
        tuple(
            FunctionReach(name, frozenset(lines), frozenset(lines & ran))
            for name, lines in by_function.items()
            if lines
        ),
    )


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions below a code object, without that of modules and class bodies."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & CO_OPTIMIZED:
                yield constant
            yield from _functions(constant)


def _is_public(name: str) -> bool:
    parts = name.split(".")
    return all(not part.startswith("_") or (part.startswith("__") and part.endswith("__")) for part in parts)


def format_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with consecutive ones as ranges, for example ``3, 5-8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
