"""The requirements of a case, ``@pytest.mark.requires(...)``, and whether a device meets them. Plain values only.

Each keyword is a capability of the vocabulary, and its value is a condition (see `harness.gating.clauses`). Three
keywords take nested conditions, as mappings:

- ``any=[{"triton": True}, {"cpp_compiler": ">=11"}]``: at least one must hold;
- ``all=[{...}, {...}]``: all must hold;
- ``not_={"device": "cuda", "memory": "<12GiB"}``, in YAML ``not``: they must not all hold together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.core.errors import HarnessError
from harness.devices.capabilities import VOCABULARY, Capabilities
from harness.gating import clauses as language
from harness.gating.clauses import DEVICES, GIVEN, Clause

__all__ = ["AnyOf", "Clause", "Condition", "Not", "Requirement", "RequirementError", "Unmet"]

_MOST_NESTED = 8  # levels of any, all and not: deeper nesting is unreadable


class RequirementError(HarnessError):
    """An invalid requirement: an unknown capability, a malformed condition, or a value of the wrong type."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One capability and its clauses. All clauses must hold. `wanted` is the condition as written."""

    capability: str
    wanted: str
    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return f"{self.capability} {self.wanted}"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one option must hold. Each option is a conjunction."""

    options: tuple[tuple[Condition, ...], ...]

    def __str__(self) -> str:
        return " or ".join(_conjunction(option) for option in self.options)


@dataclass(frozen=True, slots=True)
class Not:
    """These conditions must not all hold together."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return f"not ({_conjunction(self.conditions)})"


Condition = Requirement | AnyOf | Not


@dataclass(frozen=True, slots=True)
class Unmet:
    """Why a case is gated: the capability, the condition as written, and the value found (or why it is absent).

    `names` are the capabilities that caused the gate. An unmet ``any`` or ``not`` can have several; `capability` is
    then ``any`` or ``not``.
    """

    capability: str
    wanted: str
    found: str
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for reports: ``memory: wanted >=12GiB, found 8.0GiB``."""
        return f"{self.capability}: wanted {self.wanted}, found {self.found}"


class Mark(Protocol):
    """The part of ``pytest.Mark`` that this module uses."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments."""


def parse_requirements(kwargs: Mapping[str, object]) -> tuple[Condition, ...]:
    """Parse the keyword arguments of one mark, or the same mapping from a file. Raise RequirementError."""
    return _merged(_conditions(kwargs, depth=0))


def requirements_from_marks(marks: Iterable[Mark]) -> tuple[Condition, ...]:
    """Parse all ``requires`` marks of a case, its class and its module. All must hold. Raise RequirementError.

    Return one requirement per capability, in the order of the vocabulary, and then each ``any`` and ``not``.
    """
    conditions: list[Condition] = []
    for mark in marks:
        if mark.args:
            written = ", ".join(repr(argument) for argument in mark.args)
            raise RequirementError(f"requires({written}): takes keyword arguments only, such as device='cuda'")
        if not mark.kwargs:
            raise RequirementError("requires() has no arguments: name a capability, such as device='cuda'")
        conditions += parse_requirements(mark.kwargs)
    return _merged(conditions)


def first_unmet(conditions: Iterable[Condition], capabilities: Capabilities) -> Unmet | None:
    """Return the first condition that `capabilities` do not meet. None if they meet all."""
    return next((unmet for condition in conditions if (unmet := _unmet(condition, capabilities)) is not None), None)


def devices_wanted(conditions: Iterable[Condition], *, per_rank: bool = True) -> int:
    """Return the number of devices of a case: the smallest that meets its condition on ``devices``; 1 without one.

    `per_rank`: a condition on ``ranks`` counts as well, since each rank has its own device. On the CPU all ranks have
    the same device.
    """
    counting = GIVEN if per_rank else (DEVICES,)
    counts = [
        language.least_count(condition.clauses) or 1
        for condition in conditions
        if isinstance(condition, Requirement) and condition.capability in counting
    ]
    return max(counts, default=1)


def wants_ranks(conditions: Iterable[Condition]) -> bool:
    """Return whether a case has a condition on ``ranks``."""
    return any(
        isinstance(condition, Requirement) and condition.capability == language.RANKS for condition in conditions
    )


def memory_wanted(conditions: Iterable[Condition]) -> int:
    """Return the device memory, in bytes, that a case declares by ``memory`` or ``free_memory``.

    This is the largest lower bound.
    """
    bounds = [
        clause.value
        for condition in conditions
        if isinstance(condition, Requirement) and condition.capability in ("memory", "free_memory")
        for clause in condition.clauses
        if clause.operator in (">=", ">", "==") and isinstance(clause.value, int)
    ]
    return max(bounds, default=0)


def disguised_device(conditions: Iterable[Condition], capabilities: Capabilities) -> Unmet | None:
    """Return the device condition that holds only because torch regards the device as another kind; None without one.

    ``device: cuda`` holds on a simulated GPU. This is enough for a case, but not for the claim of a whole run.
    """
    for condition in conditions:
        if not isinstance(condition, Requirement) or condition.capability != "device":
            continue
        kind = str(capabilities["device"])
        meant = {clause.value for clause in condition.clauses} - {"cpu", kind}
        if meant and first_unmet([condition], capabilities) is None:
            return Unmet("device", condition.wanted, capabilities.describe("device"), ("device",))
    return None


def _unmet(condition: Condition, capabilities: Capabilities) -> Unmet | None:
    match condition:
        case Requirement(name, wanted, clauses):
            if language.hold(name, clauses, capabilities.finding(name)):
                return None
            return Unmet(name, wanted, capabilities.describe(name), (name,))
        case AnyOf(options):
            failures = [first_unmet(option, capabilities) for option in options]
            if None in failures:
                return None
            unmet = [failure for failure in failures if failure is not None]
            names = tuple(dict.fromkeys(name for failure in unmet for name in failure.names))
            return Unmet("any", str(condition), _described(names, capabilities), names)
        case Not(conditions):
            if first_unmet(conditions, capabilities) is not None:
                return None
            names = tuple(dict.fromkeys(name for inner in conditions for name in mentioned_capabilities(inner)))
            return Unmet("not", str(condition), _described(names, capabilities), names)


def asks_for_less(condition: Condition, capabilities: Capabilities) -> bool:
    """Return whether an unmet condition requires less than the machine has, such as the absence of NVML.

    A better machine would not meet the condition either, so a case that is gated for it is no gap in the test coverage.
    """
    match condition:
        case Requirement(name, _, clauses):
            return language.exceeds(name, clauses, capabilities.finding(name))
        case AnyOf(options):
            return all(any(_asks_for_less_than(part, capabilities) for part in option) for option in options)
        case Not(conditions):
            return all(isinstance(part, Requirement) and not language.grows_out_of(part.clauses) for part in conditions)


def _asks_for_less_than(condition: Condition, capabilities: Capabilities) -> bool:
    """Return whether a condition is unmet, and requires less than the machine has."""
    return first_unmet([condition], capabilities) is not None and asks_for_less(condition, capabilities)


def mentioned_capabilities(condition: Condition) -> tuple[str, ...]:
    """Return the capabilities that a condition names, without duplicates."""
    match condition:
        case Requirement(name):
            return (name,)
        case AnyOf(options):
            inner = [part for option in options for part in option]
        case Not(conditions):
            inner = list(conditions)
    return tuple(dict.fromkeys(name for part in inner for name in mentioned_capabilities(part)))


def _described(names: Iterable[str], capabilities: Capabilities) -> str:
    return "; ".join(f"{name} {capabilities.describe(name)}" for name in names)


def _conjunction(conditions: Iterable[Condition]) -> str:
    texts = [f"({condition})" if isinstance(condition, AnyOf) else str(condition) for condition in conditions]
    return " and ".join(texts)


def _conditions(kwargs: Mapping[str, object], *, depth: int) -> list[Condition]:
    if depth > _MOST_NESTED:
        raise RequirementError(f"requires(...): any, all and not have more than {_MOST_NESTED} levels of nesting")
    conditions: list[Condition] = []
    for name, value in kwargs.items():
        if name == "any":
            conditions.append(AnyOf(tuple(_nested(name, option, depth) for option in _listed(name, value))))
        elif name == "all":
            conditions += [condition for option in _listed(name, value) for condition in _nested(name, option, depth)]
        elif name in ("not", "not_"):
            conditions.append(Not(_nested(name, value, depth)))
        else:
            conditions.append(_requirement(name, value))
    return conditions


def _listed(name: str, value: object) -> list[object]:
    if not isinstance(value, (list, tuple)) or not value:
        raise RequirementError(
            f"requires({name}={value!r}): {name} takes a list of mappings, such as [{{'ecc': True}}]"
        )
    return list(value)


def _nested(name: str, value: object, depth: int) -> tuple[Condition, ...]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        raise RequirementError(f"requires({name}={value!r}): {name} takes conditions, such as {{'ecc': True}}")
    conditions = _conditions(value, depth=depth + 1)
    mentioned = {capability for condition in conditions for capability in mentioned_capabilities(condition)}
    for given in GIVEN if name != "all" else ():
        if given in mentioned:
            noun = "devices" if given == DEVICES else "processes"
            raise RequirementError(
                f"requires({name}={value!r}): {given!r} is how many {noun} the case gets, so it is not allowed in "
                f"{name!r}; use 'device_count' for how many devices the machine has"
            )
    return _merged(conditions)


def _requirement(name: str, condition: object) -> Requirement:
    if name not in VOCABULARY:
        near = difflib.get_close_matches(name, [*VOCABULARY, "any", "all", "not"], n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(VOCABULARY)}"
        raise RequirementError(f"requires({name}={condition!r}): there is no capability {name!r}; {advice}")
    clauses = language.read_clause(name, condition)
    if clauses is None:
        raise RequirementError(f"requires({name}={condition!r}): {name} takes {language.example_conditions(name)}")
    return Requirement(name, str(condition), clauses)


def _merged(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return one requirement per capability, in the order of the vocabulary, then the other conditions, each once."""
    by_name: dict[str, Requirement] = {}
    others: dict[Condition, None] = {}
    for new in conditions:
        if not isinstance(new, Requirement):
            others[new] = None
            continue
        old = by_name.setdefault(new.capability, new)
        if old != new:
            wanted = f"{old.wanted},{new.wanted}"
            by_name[new.capability] = Requirement(new.capability, wanted, old.clauses + new.clauses)
    for name in GIVEN:
        count = by_name.get(name)
        if count is not None and language.least_count(count.clauses) is None:
            raise RequirementError(f"requires({name}={count.wanted!r}): no number of {name} fits")
    return (*(by_name[name] for name in VOCABULARY if name in by_name), *others)
