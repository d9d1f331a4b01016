"""The faults that can be injected into devices: their names by kind of device, and the syntax of an injection.

Each kind of device has its lists (`Backend.faults`), which this module and C++ both read. Both use the same syntax,
``NAME[:probability][,seed=N]``.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from harness.backends import table
from harness.backends.backend import DeviceKind
from harness.backends.table import BACKENDS
from harness.core.errors import HarnessError

SEPARATOR = ";"

_ROOT = Path(__file__).parent.parent
_ENTRY = re.compile(r'FAULT\((\w+), "([^"\\]+)"\)')
_INJECTION = re.compile(r"(?P<name>\w+)(?::(?P<probability>[^,]*))?(?:,(?P<seed>.*))?", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,18})?|\.\d{1,18}", re.ASCII)
_MOST_SEED = (1 << 64) - 1
_FORM = "NAME[:probability][,seed=N]"


class InjectionError(HarnessError):
    """An unknown fault or an invalid injection. The text names the accepted form; callers prepend "expected"."""


@functools.cache
def fault_catalogue(kind: DeviceKind) -> Mapping[str, str]:
    """Return every fault of this kind of device with its effect, by name, in the order of its lists."""
    texts = [(_ROOT / file).read_text(encoding="utf-8") for file in BACKENDS[kind].faults]
    return MappingProxyType(parse_fault_list("\n".join(texts)))


def injectable_kinds() -> tuple[DeviceKind, ...]:
    """Return the kinds of devices that have faults."""
    return tuple(kind for kind in table.own_kinds() if BACKENDS[kind].injectable)


def parse_fault_list(text: str) -> dict[str, str]:
    """Return the faults that a list such as ``faults.def`` defines.

    Raise ValueError for an invalid line or a duplicate.
    """
    faults: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("//"):
            continue
        entry = _ENTRY.fullmatch(line.strip())
        if entry is None or entry[1] in faults:
            raise ValueError(
                f'line {number} of the list of faults is {line!r}: expected FAULT(name, "text") with a new name'
            )
        faults[entry[1]] = entry[2]
    return faults


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that occurs at each opportunity with this probability, in (0, 1]. `seed` is that of its generator."""

    name: str
    probability: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        """Return the text of the injection without defaults. `parse_injection` is the inverse."""
        probability = "" if self.probability == 1.0 else f":{_decimal(self.probability)}"
        seed = f",seed={self.seed}" if self.seed else ""
        return f"{self.name}{probability}{seed}"


def parse_injection(text: str, kind: DeviceKind | None = None) -> Injection:
    """Parse an injection into devices of this kind, or of any kind. Raise InjectionError."""
    match = _INJECTION.fullmatch(text.strip())
    if match is None:
        raise InjectionError(f"a fault as {_FORM}, not {text!r}")
    name = match["name"]
    names = {fault for each_kind in ([kind] if kind else injectable_kinds()) for fault in fault_catalogue(each_kind)}
    if name not in names:
        near = difflib.get_close_matches(name, sorted(names), n=1)
        listing = f"'harness faults list{f' --device {kind}' if kind else ''}' lists all faults"
        advice = f"did you mean {near[0]!r}?" if near else listing
        raise InjectionError(f"the name of a fault{f' of {kind}' if kind else ''}, not {name!r}; {advice}")
    return Injection(name, _probability(name, match["probability"]), _seed(name, match["seed"]))


def parse_injections(text: str) -> tuple[Injection, ...]:
    """Parse injections separated by semicolons. The result is empty for an empty text. Raise InjectionError."""
    injections = [parse_injection(part) for part in text.split(SEPARATOR) if part.strip()]
    names = [injection.name for injection in injections]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InjectionError(f"each fault once, but {twice!r} appears {names.count(twice)} times")
    return tuple(injections)


def join_injections(injections: Iterable[str]) -> str:
    """Return the value of the variable for these injections."""
    return SEPARATOR.join(injections)


def _probability(name: str, text: str | None) -> float:
    if text is None:
        return 1.0
    probability = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < probability <= 1:
        raise InjectionError(f"a probability above 0 and at most 1 for {name!r}, not {text!r}")
    return probability


def _seed(name: str, text: str | None) -> int:
    if text is None:
        return 0
    key, separator, number = text.partition("=")
    if key.strip() != "seed" or not separator:
        raise InjectionError(f"a fault as {_FORM}, but after the comma of {name!r} comes {text!r}")
    if not (number.isascii() and number.isdecimal() and len(number) <= 20 and int(number) <= _MOST_SEED):
        raise InjectionError(f"a seed from 0 to 2**64-1 for {name!r}, not {number!r}")
    return int(number)


def _decimal(value: float) -> str:
    """Return a number in [0, 1] without an exponent, which the syntax does not allow."""
    return f"{value:.18f}".rstrip("0") if "e" in repr(value) else repr(value)
