"""The faults that the software device can be told to have: their names, and how an injection is written.

``csrc/faults.def`` is the one list, read here and by the C++ core. The grammar, ``NAME[:probability][,seed=N]``, is the
core's as well.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from harness.errors import HarnessError

#: The variable with which a process is told what to inject: injections, separated by semicolons.
VARIABLE = "SOFT_INJECT"
SEPARATOR = ";"

_DEFINITIONS = Path(__file__).with_name("csrc") / "faults.def"
_ENTRY = re.compile(r'FAULT\((\w+), "([^"\\]+)"\)')
_INJECTION = re.compile(r"(?P<name>\w+)(?::(?P<probability>[^,]*))?(?:,(?P<seed>.*))?", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,18})?|\.\d{1,18}", re.ASCII)
_MOST_SEED = (1 << 64) - 1
_FORM = "NAME[:probability][,seed=N]"


class InjectionError(HarnessError):
    """A fault that there is not, or an injection that cannot be read. Its text says what was expected."""


@functools.cache
def catalogue() -> Mapping[str, str]:
    """Every fault, in the order of the list: what it breaks in one line, by its name."""
    return MappingProxyType(definitions(_DEFINITIONS.read_text(encoding="utf-8")))


def definitions(text: str) -> dict[str, str]:
    """The faults that a list such as ``faults.def`` defines. Raises ValueError for a line that is none, or a second."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("//"):
            continue
        entry = _ENTRY.fullmatch(line.strip())
        if entry is None or entry[1] in found:
            raise ValueError(
                f'line {number} of the list of faults is {line!r}: expected FAULT(name, "text"), a new name'
            )
        found[entry[1]] = entry[2]
    return found


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that strikes at each opportunity with a probability, in (0, 1], drawn by a generator with this seed."""

    name: str
    probability: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        """As it is written, without what goes without saying; `parse` reads it back."""
        probability = "" if self.probability == 1.0 else f":{_decimal(self.probability)}"
        seed = f",seed={self.seed}" if self.seed else ""
        return f"{self.name}{probability}{seed}"


def parse(text: str) -> Injection:
    """The injection that `text` writes. Raises InjectionError."""
    found = _INJECTION.fullmatch(text.strip())
    if found is None:
        raise InjectionError(f"a fault as {_FORM}, not {text!r}")
    name = found["name"]
    if name not in catalogue():
        near = difflib.get_close_matches(name, catalogue(), n=1)
        advice = f"did you mean {near[0]!r}?" if near else "'harness faults list' has them all"
        raise InjectionError(f"a fault, and there is none named {name!r}; {advice}")
    return Injection(name, _probability(name, found["probability"]), _seed(name, found["seed"]))


def parse_all(text: str) -> tuple[Injection, ...]:
    """The injections of a text that separates them by semicolons; none in an empty one. Raises InjectionError."""
    injections = [parse(part) for part in text.split(SEPARATOR) if part.strip()]
    names = [injection.name for injection in injections]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InjectionError(f"each fault once, and {twice!r} is there {names.count(twice)} times")
    return tuple(injections)


def joined(injections: Iterable[str]) -> str:
    """The value of the variable for injections, as they are written."""
    return SEPARATOR.join(injections)


def _probability(name: str, text: str | None) -> float:
    if text is None:
        return 1.0
    probability = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < probability <= 1:
        raise InjectionError(f"a probability above 0, and at most 1, for {name!r}, not {text!r}")
    return probability


def _seed(name: str, text: str | None) -> int:
    if text is None:
        return 0
    key, separator, number = text.partition("=")
    if key.strip() != "seed" or not separator:
        raise InjectionError(f"a fault as {_FORM}: what follows the comma of {name!r} is {text!r}")
    if not (number.isascii() and number.isdecimal() and len(number) <= 20 and int(number) <= _MOST_SEED):
        raise InjectionError(f"a seed from 0 to 2**64-1 for {name!r}, not {number!r}")
    return int(number)


def _decimal(value: float) -> str:
    """A number in [0, 1] without an exponent, which the grammar does not have."""
    return f"{value:.18f}".rstrip("0") if "e" in repr(value) else repr(value)
