"""The mark ``keeps``: how much memory a case may keep in each repetition. Only growth beyond that counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.checks.meters import METERS_BY_NAME
from harness.core.errors import HarnessError

_SIZE = re.compile(r"(\d{1,9})(KiB|MiB|GiB)", re.ASCII)
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
#: The arguments of the mark. Each stands for the meters that name it in `harness.checks.meters`.
KEEPS_GROUPS = ("tensors", "host", "pinned", "device", "streams")
#: Arguments that take a number, not a size.
_COUNTED = ("tensors", "streams")
#: The groups that a mark without limits allows.
_UNNAMED = ("tensors", "host")


@dataclass(frozen=True, slots=True)
class Keeps:
    """The memory that a case keeps in each repetition, and the reason.

    `most`: the limits of the mark, as numbers or bytes.
    """

    reason: str
    most: Mapping[str, int]

    @property
    def text(self) -> str:
        """The reason, with the limits as the mark has them: ``… (at most tensors 4, host 64 KiB per repetition)``."""
        if not self.most:
            return self.reason
        limits = ", ".join(f"{name} {_shown(name, most)}" for name, most in self.most.items())
        return f"{self.reason} (at most {limits} per repetition)"

    def allowance(self, meter: str) -> int | None:
        """Return how much a meter may grow in a repetition. None: no limit. 0: the case does not keep it."""
        entry = METERS_BY_NAME.get(meter.partition("[")[0])
        if entry is None or not entry.keeps:
            return 0
        if self.most:
            return self.most.get(entry.keeps, 0) // entry.block_bytes
        return None if entry.keeps in _UNNAMED else 0

    def beyond(self, changes: Mapping[str, int]) -> dict[str, int]:
        """Return the changes of one repetition that the mark does not allow, by meter.

        A decrease is returned unchanged.
        """
        counted = {}
        for meter, change in changes.items():
            allowed = self.allowance(meter)
            more = change if change < 0 else 0 if allowed is None else max(0, change - allowed)
            if more:
                counted[meter] = more
        return counted


def parse_keeps_mark(args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> Keeps:
    """Return the mark with these arguments. `where`: file and line of the case. Raise HarnessError."""
    named = dict(kwargs)
    reasons = [*args, *([named.pop("reason")] if "reason" in named else [])]
    if len(reasons) != 1 or not isinstance(reasons[0], str) or not reasons[0].strip():
        raise HarnessError(
            f"{where}: keeps(...) needs one reason: what keeps memory, and why the case cannot release it; "
            f"it has {reasons!r}"
        )
    return Keeps(reasons[0], {name: _amount(name, value, where) for name, value in named.items()})


def _amount(name: str, value: object, where: str) -> int:
    wrong = f"{where}: keeps({name}={value!r}): expected"
    if name not in KEEPS_GROUPS:
        raise HarnessError(f"{wrong} one of {', '.join(f'{group}=…' for group in KEEPS_GROUPS)}")
    if name in _COUNTED:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise HarnessError(f"{wrong} a number of {name}, at least 1")
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) < 1:
        raise HarnessError(f"{wrong} a size with a unit, such as '64KiB', '2MiB' or '1GiB'")
    return int(match[1]) * _UNITS[match[2]]


def _shown(name: str, most: int) -> str:
    if name in _COUNTED:
        return str(most)
    unit = next(unit for unit in ("GiB", "MiB", "KiB") if most % _UNITS[unit] == 0)
    return f"{most // _UNITS[unit]} {unit}"
