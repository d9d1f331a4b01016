"""What a case asks for with ``@pytest.mark.requires(...)``, and whether a device offers it. Plain values only.

A keyword names a capability of the vocabulary, and its value is a condition:

- ``">=8.0"``: an operator (``>= <= == != > <``) and a value; several, separated by commas, must all hold.
- ``"2.13"``: without an operator, ``==``.
- Versions are compared to the precision written: ``"==2.13"`` and ``"<=2.13"`` hold for 2.13.1, and ``">2.13"`` begins
  with 2.14. Only release numbers count: 2.13.0+cpu is 2.13.0, and a nightly of 2.14 is 2.14.
- Sizes need an operator and a unit: ``">=12GiB"`` (KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000).
- ``True`` and ``False``: the thing is there, or is not. For versions and yes-or-no capabilities.
- ``2``: at least so many. For counts.
- ``device="cuda"`` or ``device="cpu"``: the latter holds everywhere, since every machine has a CPU.
- ``devices=2``: the case is given two; holds where some number that fits the condition can be given.

What is absent meets no condition but ``False``.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from harness.devices.capabilities import VOCABULARY, Capabilities, Kind
from harness.devices.finding import Finding, Value
from harness.errors import HarnessError


class RequirementError(HarnessError):
    """A requirement that cannot be read: an unknown capability, a malformed condition, a value of the wrong type."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison, with `operator` as written, or ``is`` for presence; `value` is what is wanted."""

    operator: str
    value: Value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One capability and the clauses on it, all of which must hold. `wanted` is the condition as written."""

    capability: str
    wanted: str
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Unmet:
    """Why a case is gated: the capability, the condition as written, and what was found, with the reason if absent."""

    capability: str
    wanted: str
    found: str

    @property
    def text(self) -> str:
        """One line for reports: ``memory: wanted >=12GiB, found 8.0GiB``."""
        return f"{self.capability}: wanted {self.wanted}, found {self.found}"


class Mark(Protocol):
    """What this module reads of a ``pytest.Mark``."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments."""


def parse(kwargs: Mapping[str, object]) -> tuple[Requirement, ...]:
    """Read the keyword arguments of one mark. Raises RequirementError."""
    return _merged(_requirement(name, condition) for name, condition in kwargs.items())


def from_marks(marks: Iterable[Mark]) -> tuple[Requirement, ...]:
    """Read all ``requires`` marks on a case, its class and its module: every one must hold. Raises RequirementError.

    There is one requirement a capability, in the order of the vocabulary.
    """
    requirements: list[Requirement] = []
    for mark in marks:
        if mark.args:
            written = ", ".join(repr(argument) for argument in mark.args)
            raise RequirementError(f"requires({written}): takes keyword arguments only, such as device='cuda'")
        if not mark.kwargs:
            raise RequirementError("requires() asks for nothing: name a capability, such as device='cuda'")
        requirements += parse(mark.kwargs)
    return _merged(requirements)


def evaluate(requirements: Iterable[Requirement], capabilities: Capabilities) -> Unmet | None:
    """The first requirement that `capabilities` do not meet; None when they meet all."""
    for requirement in requirements:
        name = requirement.capability
        if not _holds(requirement, capabilities.finding(name)):
            return Unmet(name, requirement.wanted, capabilities.describe(name))
    return None


def devices_wanted(requirements: Iterable[Requirement]) -> int:
    """How many devices to give a case: the least number that fits its condition on ``devices``, 1 when it has none."""
    for requirement in requirements:
        if requirement.capability == _DEVICES:
            return _least_count(requirement.clauses) or 1
    return 1


_DEVICES = "devices"

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_UNITS = {
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
}

_EXAMPLES = {
    Kind.TEXT: "'linux-x86_64' or '!=linux-x86_64'",
    Kind.BOOL: "True or False",
    Kind.COUNT: "2, '==2' or '>=2,<=4'",
    Kind.BYTES: "'>=12GiB'",
    Kind.VERSION: "'>=2.11', '>=2.11,<2.13', True or False",
}


def _requirement(name: str, condition: object) -> Requirement:
    capability = VOCABULARY.get(name)
    if capability is None:
        near = difflib.get_close_matches(name, VOCABULARY, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(VOCABULARY)}"
        raise RequirementError(f"requires({name}={condition!r}): there is no capability {name!r}; {advice}")
    clauses = _clauses(name, condition, capability.kind)
    if clauses is None:
        expected = " or ".join(repr(choice) for choice in capability.choices) or _EXAMPLES[capability.kind]
        raise RequirementError(f"requires({name}={condition!r}): {name} takes {expected}")
    return Requirement(name, str(condition), clauses)


def _merged(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """One requirement a capability, in the order of the vocabulary."""
    by_name: dict[str, Requirement] = {}
    for new in requirements:
        old = by_name.setdefault(new.capability, new)
        if old != new:
            wanted = f"{old.wanted},{new.wanted}"
            by_name[new.capability] = Requirement(new.capability, wanted, old.clauses + new.clauses)
    devices = by_name.get(_DEVICES)
    if devices is not None and _least_count(devices.clauses) is None:
        raise RequirementError(f"requires({_DEVICES}={devices.wanted!r}): no number of devices fits")
    return tuple(by_name[name] for name in VOCABULARY if name in by_name)


def _clauses(name: str, condition: object, kind: Kind) -> tuple[Clause, ...] | None:
    """The clauses of a condition, None when it is malformed."""
    if isinstance(condition, bool):
        return (Clause("is", condition),) if kind in (Kind.BOOL, Kind.VERSION) else None
    if isinstance(condition, int):
        return (Clause(">=", condition),) if kind is Kind.COUNT and condition >= 1 else None
    if not isinstance(condition, str):
        return None
    if choices := VOCABULARY[name].choices:
        return (Clause("==", condition),) if condition in choices else None
    clauses = [_clause(part, kind) for part in condition.split(",")]
    return tuple(clause for clause in clauses if clause) if all(clauses) else None


def _clause(text: str, kind: Kind) -> Clause | None:
    match = re.fullmatch(r"(>=|<=|==|!=|>|<)?\s*(.+)", text.strip())
    if match is None:
        return None
    sign, wanted = match[1], match[2]
    if kind is Kind.VERSION and re.fullmatch(r"\d{1,9}(\.\d{1,9})*", wanted, re.ASCII):
        return Clause(sign or "==", tuple(int(part) for part in wanted.split(".")))
    if kind is Kind.COUNT and re.fullmatch(r"\d{1,9}", wanted, re.ASCII):
        return Clause(sign or ">=", int(wanted))
    if kind is Kind.TEXT and sign in (None, "==", "!=") and re.fullmatch(r"[\w.-]+", wanted, re.ASCII):
        return Clause(sign or "==", wanted)
    if kind is Kind.BYTES and sign and (size := re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(\w+)", wanted, re.ASCII)):
        unit = _UNITS.get(size[2])
        return None if unit is None else Clause(sign, int(Fraction(size[1]) * unit))
    return None


def _least_count(clauses: Iterable[Clause]) -> int | None:
    """The least number of devices, from 1 on, for which all `clauses` hold; None when there is none."""
    clauses = tuple(clauses)
    # Where a comparison with a number changes its answer, it does so at that number or right after it.
    edges = {1, *(clause.value + step for clause in clauses if isinstance(clause.value, int) for step in (0, 1))}
    fitting = (count for count in sorted(edges) if count >= 1 and all(_compares(c, count) for c in clauses))
    return next(fitting, None)


def _holds(requirement: Requirement, finding: Finding) -> bool:
    if requirement.capability == _DEVICES:
        least = _least_count(requirement.clauses)
        return least is not None and isinstance(finding.value, int) and least <= finding.value
    return all(_clause_holds(requirement.capability, clause, finding) for clause in requirement.clauses)


def _clause_holds(name: str, clause: Clause, finding: Finding) -> bool:
    if clause.operator == "is":
        return finding.present is clause.value
    if (name, clause.value) == ("device", "cpu"):
        return True
    return finding.value is not None and _compares(clause, finding.value)


def _compares(clause: Clause, found: Value) -> bool:
    if isinstance(found, tuple) and isinstance(clause.value, tuple):
        precision = len(clause.value)
        found = (found + (0,) * precision)[:precision]
    return _COMPARE[clause.operator](found, clause.value)
