"""Conditions on one capability: their syntax and their evaluation. Plain values only.

- ``">=8.0"``: an operator (``>= <= == != > <``) and a value. Clauses separated by commas must all hold.
- ``"2.13"``: without an operator, ``==``.
- Versions are compared to the precision written: ``"==2.13"`` and ``"<=2.13"`` hold for 2.13.1, and the first version
  for ``">2.13"`` is 2.14. Only release numbers count: 2.13.0+cpu is 2.13.0, and a nightly of 2.14 is 2.14.
- Sizes need an operator and a unit: ``">=12GiB"``. KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000.
- ``True`` and ``False``: present or absent. For versions and booleans.
- ``2``: at least two. For counts.
- Texts: ``"linux-*|darwin-arm64"``. ``|`` separates alternatives; ``*`` is any run of characters.
- ``device="cpu"`` holds everywhere, since every machine has a CPU. ``device="cuda"`` also holds on a simulated GPU,
  which is ``cuda`` to torch; ``silicon=True`` requires a real one.
- ``devices=2``: the case gets two devices. The condition holds if the machine has a number of devices that meets it.
- ``ranks=4``: the case runs four processes at the same time, each with its own device. On an accelerator it gets four
  devices.

An absent capability meets no condition except ``False``.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from harness.backends.table import names
from harness.devices.capabilities import VOCABULARY, ValueKind
from harness.devices.device import Detected, Value

DEVICES = "devices"
RANKS = "ranks"
#: Capabilities of which a case gets exactly as many as it requires.
GIVEN = (DEVICES, RANKS)


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison. `operator` is as written, or ``is`` for presence; `value` is the wanted value."""

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


def read_clause(name: str, condition: object) -> tuple[Clause, ...] | None:
    """Parse a condition on capability `name` of the vocabulary. Return None if the condition is malformed."""
    kind = VOCABULARY[name].kind
    if isinstance(condition, bool):
        return (Clause("is", condition),) if kind in (ValueKind.BOOL, ValueKind.VERSION) else None
    if isinstance(condition, int):
        return (Clause(">=", condition),) if kind is ValueKind.COUNT and condition >= 1 else None
    if not isinstance(condition, str):
        return None
    if (allows := VOCABULARY[name].allows) is not None:
        return (Clause("==", condition),) if allows(condition) else None
    clauses = [_clause(part, kind) for part in condition.split(",")]
    return tuple(clause for clause in clauses if clause) if all(clauses) else None


def example_conditions(name: str) -> str:
    """Return examples of conditions on capability `name`, for error messages."""
    return " or ".join(repr(choice) for choice in VOCABULARY[name].choices()) or _EXAMPLES[VOCABULARY[name].kind]


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
    """Return whether all `clauses` on capability `name` hold for `finding`."""
    if name in GIVEN:
        least = least_count(clauses)
        return least is not None and isinstance(finding.value, int) and least <= finding.value
    return all(_holds(name, clause, finding) for clause in clauses)


def _holds(name: str, clause: Clause, finding: Detected) -> bool:
    if clause.operator == "is":
        return finding.present is clause.value
    if (name, clause.value) == ("device", "cpu"):
        return True
    if finding.value is None:
        return False
    if name == "device":
        return clause.value in names(str(finding.value))
    return compares(clause, finding.value)


def exceeds(name: str, clauses: Iterable[Clause], finding: Detected) -> bool:
    """Return whether the clauses that do not hold require less than `finding`: an absence, or a smaller value."""
    if name in GIVEN:
        return False
    failing = [clause for clause in clauses if not _holds(name, clause, finding)]
    return all(_asks_for_less(clause, finding.value) for clause in failing)


def _asks_for_less(clause: Clause, value: Value | None) -> bool:
    if clause.operator == "is":
        return clause.value is False
    if value is None or clause.operator in (">=", ">"):
        return False
    if clause.operator == "==":
        return not isinstance(value, str) and compares(Clause(">", clause.value), value)
    return True


def grows_out_of(clauses: Iterable[Clause]) -> bool:
    """Return whether a larger value could fail these clauses, which hold now."""
    return any(
        clause.value is False
        or clause.operator in ("<", "<=")
        or (clause.operator == "==" and not isinstance(clause.value, str))
        for clause in clauses
    )


def least_count(clauses: Iterable[Clause]) -> int | None:
    """Return the smallest number of devices, 1 or more, for which all `clauses` hold. None if there is none."""
    clauses = tuple(clauses)
    # The result of a comparison with a number can change only at that number or right after it.
    edges = {1, *(clause.value + step for clause in clauses if isinstance(clause.value, int) for step in (0, 1))}
    fitting = (count for count in sorted(edges) if count >= 1 and all(compares(c, count) for c in clauses))
    return next(fitting, None)


def compares(clause: Clause, value: Value) -> bool:
    """Return whether the comparison holds for `value`. `value` has the type of the capability."""
    if isinstance(value, tuple) and isinstance(clause.value, tuple):
        precision = len(clause.value)
        value = (value + (0,) * precision)[:precision]
    if isinstance(value, str) and isinstance(clause.value, str):
        return (_pattern(clause.value).fullmatch(value) is not None) is (clause.operator == "==")
    return _COMPARE[clause.operator](value, clause.value)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    alternatives = (alternative.strip() for alternative in text.split("|"))
    return re.compile("|".join(re.escape(alternative).replace(r"\*", ".*") for alternative in alternatives), re.DOTALL)
