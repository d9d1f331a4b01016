"""Evaluate conditions on a machine with known declared conditions: certain, possible or impossible.

This checks a machine against the promises of its kind, and finds conditions that no declared machine can meet. The
result is exact if each capability occurs only once in a condition. Otherwise it may be "possible" too often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.devices.capabilities import VOCABULARY, ValueKind
from harness.devices.device import Detected, Value
from harness.gating import requirements as language
from harness.gating.requirements import AnyOf, Clause, Condition, Not, Requirement

_FAR = 10**9  # larger than every number in a condition
_OTHER = "\0"  # a text that occurs in no condition


@dataclass(frozen=True, slots=True)
class Implication:
    """Whether the conditions hold on at least one possible machine, and whether they fail on at least one."""

    can_hold: bool
    can_fail: bool

    @property
    def certain(self) -> bool:
        """Whether the conditions hold on every possible machine."""
        return self.can_hold and not self.can_fail


def implication(conditions: Iterable[Condition], declared: Iterable[Condition]) -> Implication:
    """Return whether all `conditions` together can hold or fail on a machine on which the `declared` conditions hold.

    Without declared conditions, return whether `conditions` can hold at all, and whether they can fail. A declared
    ``any`` or ``not`` is ignored.
    """
    by_capability = {condition.capability: condition for condition in declared if isinstance(condition, Requirement)}
    implications = [_single(condition, by_capability) for condition in conditions]
    return Implication(
        all(implied.can_hold for implied in implications), any(implied.can_fail for implied in implications)
    )


def _single(condition: Condition, by_capability: Mapping[str, Requirement]) -> Implication:
    match condition:
        case Requirement():
            return _leaf(condition, by_capability.get(condition.capability))
        case AnyOf(options):
            implications = [implication(option, by_capability.values()) for option in options]
            return Implication(
                any(implied.can_hold for implied in implications), all(implied.can_fail for implied in implications)
            )
        case Not(conditions):
            inner = implication(conditions, by_capability.values())
            return Implication(inner.can_fail, inner.can_hold)


def _leaf(wanted: Requirement, declared: Requirement | None) -> Implication:
    name = wanted.capability
    values: set[Value | None] = {None}
    for clause in (*wanted.clauses, *(declared.clauses if declared else ())):
        values |= _around(name, clause)
    values |= set(VOCABULARY[name].choices())
    possible = [value for value in values if declared is None or _fits_declared(declared, value)]
    holding = [value for value in possible if language.hold(name, wanted.clauses, Detected(value))]
    return Implication(bool(holding), len(holding) < len(possible))


def _fits_declared(declared: Requirement, value: Value | None) -> bool:
    if VOCABULARY[declared.capability].allows is not None:  # as a requirement, device="cpu" holds on a GPU too
        return value is not None and all(language.compares(clause, value) for clause in declared.clauses)
    return language.hold(declared.capability, declared.clauses, Detected(value))


def _around(name: str, clause: Clause) -> set[Value | None]:
    """Return the values at which the result of the clause may change, and one value on each side of them."""
    kind = VOCABULARY[name].kind
    match clause.value:
        case bool():
            return {True, False} if kind is ValueKind.BOOL else {(_FAR,), (0,)}
        case int() as number:
            return {number - 1, number, number + 1, 0}
        case tuple() as version:
            return {version, (*version, 1), (*version[:-1], version[-1] + 1), _before(version), (_FAR,), (0,)}
        case str() as text:
            return {_OTHER, *(alternative.strip().replace("*", "") for alternative in text.split("|"))}


def _before(version: tuple[int, ...]) -> tuple[int, ...]:
    """Return a version right before `version`: (2, 12, far) for (2, 13) and (2, 13, 0)."""
    significant = version
    while significant and not significant[-1]:
        significant = significant[:-1]
    return (*significant[:-1], significant[-1] - 1, _FAR) if significant else (0,)
