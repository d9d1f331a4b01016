"""Conditions on one capability: how they are written, and what holds. Plain values only.

- ``">=8.0"``: an operator (``>= <= == != > <``) and a value; several, separated by commas, must all hold.
- ``"2.13"``: without an operator, ``==``.
- Versions are compared to the precision written: ``"==2.13"`` and ``"<=2.13"`` hold for 2.13.1, and ``">2.13"`` begins
  with 2.14. Only release numbers count: 2.13.0+cpu is 2.13.0, and a nightly of 2.14 is 2.14.
- Sizes need an operator and a unit: ``">=12GiB"`` (KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000).
- ``True`` and ``False``: the thing is there, or is not. For versions and yes-or-no capabilities.
- ``2``: at least so many. For counts.
- Texts: ``"linux-*|darwin-arm64"``, where ``|`` separates alternatives and ``*`` is any run of characters.
- ``device="cuda"`` or ``device="cpu"``: the latter holds everywhere, since every machine has a CPU.
- ``devices=2``: the case is given two; holds where some number that fits the condition can be given.

What is absent meets no condition but ``False``.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from harness.devices.capabilities import VOCABULARY, ValueKind
from harness.devices.detected import Detected, Value

DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison, with `operator` as written, or ``is`` for presence; `value` is what is wanted."""

    operator: str
    value: Value


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
    ValueKind.TEXT: "'linux-x86_64', 'linux-*|darwin-arm64' or '!=linux-x86_64'",
    ValueKind.BOOL: "True or False",
    ValueKind.COUNT: "2, '==2' or '>=2,<=4'",
    ValueKind.BYTES: "'>=12GiB'",
    ValueKind.VERSION: "'>=2.11', '>=2.11,<2.13', True or False",
}


def read(name: str, condition: object) -> tuple[Clause, ...] | None:
    """The clauses of a condition on capability `name` of the vocabulary, None when it is malformed."""
    kind = VOCABULARY[name].kind
    if isinstance(condition, bool):
        return (Clause("is", condition),) if kind in (ValueKind.BOOL, ValueKind.VERSION) else None
    if isinstance(condition, int):
        return (Clause(">=", condition),) if kind is ValueKind.COUNT and condition >= 1 else None
    if not isinstance(condition, str):
        return None
    if choices := VOCABULARY[name].choices:
        return (Clause("==", condition),) if condition in choices else None
    clauses = [_clause(part, kind) for part in condition.split(",")]
    return tuple(clause for clause in clauses if clause) if all(clauses) else None


def expected(name: str) -> str:
    """In words, what a condition on capability `name` looks like."""
    return " or ".join(repr(choice) for choice in VOCABULARY[name].choices) or _EXAMPLES[VOCABULARY[name].kind]


def _clause(text: str, kind: ValueKind) -> Clause | None:
    match = re.fullmatch(r"(>=|<=|==|!=|>|<)?\s*(.+)", text.strip())
    if match is None:
        return None
    sign, wanted = match[1], match[2]
    if kind is ValueKind.VERSION and re.fullmatch(r"\d{1,9}(\.\d{1,9})*", wanted, re.ASCII):
        return Clause(sign or "==", tuple(int(part) for part in wanted.split(".")))
    if kind is ValueKind.COUNT and re.fullmatch(r"\d{1,9}", wanted, re.ASCII):
        return Clause(sign or ">=", int(wanted))
    if (
        kind is ValueKind.TEXT
        and sign in (None, "==", "!=")
        and re.fullmatch(r"[^\W_][ -;?-~]{0,199}|\*[ -;?-~]*", wanted)
    ):
        return Clause(sign or "==", wanted)
    if (
        kind is ValueKind.BYTES
        and sign
        and (size := re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(\w+)", wanted, re.ASCII))
    ):
        unit = _UNITS.get(size[2])
        return None if unit is None else Clause(sign, int(Fraction(size[1]) * unit))
    return None


def hold(name: str, clauses: Iterable[Clause], finding: Detected) -> bool:
    """Whether all `clauses` on capability `name` hold for what was found."""
    if name == DEVICES:
        least = least_count(clauses)
        return least is not None and isinstance(finding.value, int) and least <= finding.value
    return all(_holds(name, clause, finding) for clause in clauses)


def _holds(name: str, clause: Clause, finding: Detected) -> bool:
    if clause.operator == "is":
        return finding.present is clause.value
    if (name, clause.value) == ("device", "cpu"):
        return True
    return finding.value is not None and compares(clause, finding.value)


def least_count(clauses: Iterable[Clause]) -> int | None:
    """The least number of devices, from 1 on, for which all `clauses` hold; None when there is none."""
    clauses = tuple(clauses)
    # Where a comparison with a number changes its answer, it does so at that number or right after it.
    edges = {1, *(clause.value + step for clause in clauses if isinstance(clause.value, int) for step in (0, 1))}
    fitting = (count for count in sorted(edges) if count >= 1 and all(compares(c, count) for c in clauses))
    return next(fitting, None)


def compares(clause: Clause, found: Value) -> bool:
    """Whether `found`, of the type that the clause is about, compares as the clause says."""
    if isinstance(found, tuple) and isinstance(clause.value, tuple):
        precision = len(clause.value)
        found = (found + (0,) * precision)[:precision]
    if isinstance(found, str) and isinstance(clause.value, str):
        return (_pattern(clause.value).fullmatch(found) is not None) is (clause.operator == "==")
    return _COMPARE[clause.operator](found, clause.value)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    alternatives = (alternative.strip() for alternative in text.split("|"))
    return re.compile("|".join(re.escape(alternative).replace(r"\*", ".*") for alternative in alternatives), re.DOTALL)
