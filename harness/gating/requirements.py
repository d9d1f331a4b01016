"""The requirements of a case, ``@pytest.mark.requires(...)`` and its types, and whether a device meets them.

Each keyword is a capability of the vocabulary, and its value is a condition, whose syntax follows below. Three
keywords take nested conditions, as mappings:

- ``any=[{"triton": True}, {"cpp_compiler": ">=11"}]``: at least one must hold;
- ``all=[{...}, {...}]``: all must hold;
- ``not_={"device": "cuda", "memory": "<12GiB"}``, in YAML ``not``: they must not all hold together.
"""

from __future__ import annotations

import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from harness.backends.table import names
from harness.core.errors import HarnessError
from harness.devices.capabilities import VOCABULARY, Capabilities, ValueKind
from harness.devices.device import Detected, Value

# Conditions on one capability: their syntax and their evaluation. Plain values only.
#
# - ``">=8.0"``: an operator (``>= <= == != > <``) and a value. Clauses separated by commas must all hold.
# - ``"2.13"``: without an operator, ``==``.
# - Versions are compared to the precision written: ``"==2.13"`` and ``"<=2.13"`` hold for 2.13.1, and the first version
#   for ``">2.13"`` is 2.14. Only release numbers count: 2.13.0+cpu is 2.13.0, and a nightly of 2.14 is 2.14.
# - Sizes need an operator and a unit: ``">=12GiB"``. KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000.
# - ``True`` and ``False``: present or absent. For versions and booleans.
# - ``2``: at least two. For counts.
# - Texts: ``"linux-*|darwin-arm64"``. ``|`` separates alternatives; ``*`` is any run of characters.
# - ``device="cpu"`` holds everywhere, since every machine has a CPU. ``device="cuda"`` also holds on a simulated GPU,
#   which is ``cuda`` to torch; ``silicon=True`` requires a real one.
# - ``devices=2``: the case gets two devices. The condition holds if the machine has a number of devices that meets it.
# - ``ranks=4``: the case runs four processes at the same time, each with its own device. On an accelerator it gets four
#   devices.
#
# An absent capability meets no condition except ``False``.

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
        least_count(condition.clauses) or 1
        for condition in conditions
        if isinstance(condition, Requirement) and condition.capability in counting
    ]
    return max(counts, default=1)


def wants_ranks(conditions: Iterable[Condition]) -> bool:
    """Return whether a case has a condition on ``ranks``."""
    return any(isinstance(condition, Requirement) and condition.capability == RANKS for condition in conditions)


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
            if hold(name, clauses, capabilities.finding(name)):
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
            return exceeds(name, clauses, capabilities.finding(name))
        case AnyOf(options):
            return all(any(_asks_for_less_than(part, capabilities) for part in option) for option in options)
        case Not(conditions):
            return all(isinstance(part, Requirement) and not grows_out_of(part.clauses) for part in conditions)


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
    clauses = read_clause(name, condition)
    if clauses is None:
        raise RequirementError(f"requires({name}={condition!r}): {name} takes {example_conditions(name)}")
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
        if count is not None and least_count(count.clauses) is None:
            raise RequirementError(f"requires({name}={count.wanted!r}): no number of {name} fits")
    return (*(by_name[name] for name in VOCABULARY if name in by_name), *others)


# The types of tensors that a device lacks by declaration, and the cases that need them. Pure functions.
#
# A hardware file declares them as ``without_types``. A case needs the types among its parameters, and those of its
# marks ``types``. Such a case is gated if the device lacks one of them.

#: The name of such a gate in reports, in the place of a capability.
TYPES = "types"
#: The variable with the types that the device of an executor lacks, separated by commas. Cases that loop over several
#: types skip these.
VARIABLE = "HARNESS_WITHOUT_TYPES"
#: The names of torch.dtype in torch 2.11 to 2.15, without quantized ones and packed bits.
KNOWN = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("complex128", "complex64", "complex32"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)


def parameter_types(item: object) -> tuple[str, ...]:
    """Return the names of the types among the parameters of a pytest item: each ``torch.dtype``, and each name of one.

    A stand-in for an item that another process has collected has these names as an attribute.
    """
    described: tuple[str, ...] | None = getattr(item, "parameter_types", None)
    if described is not None:
        return described
    parameters: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return tuple(dict.fromkeys(name for value in parameters.values() if (name := _name(value))))


def types_needed(parameters: Iterable[str], marks: Iterable[Mark]) -> list[str]:
    """Return the names of the types that a case needs: those of its parameters, and of its marks ``types``.

    Raise HarnessError for a mark that names no type.
    """
    names = list(parameters)
    for mark in marks:
        if not mark.args or mark.kwargs:
            raise HarnessError("types() takes the names of one or more types, such as types('float64')")
        for name in mark.args:
            if name not in KNOWN:
                raise HarnessError(f"types({name!r}): expected names among {', '.join(KNOWN)}")
            names.append(name)
    return list(dict.fromkeys(names))


def first_lacking(needed: Iterable[str], without: Sequence[str], hardware: str) -> Unmet | None:
    """Return why a case that needs these types is gated on hardware that lacks some. None if the hardware has all."""
    name = next((name for name in needed if name in without), None)
    if name is None:
        return None
    return Unmet(TYPES, name, f"a device without it, as hardware {hardware} declares", (TYPES,))


def _name(value: object) -> str:
    text = str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else value
    return text if isinstance(text, str) and text in KNOWN else ""
