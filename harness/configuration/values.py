"""The values of settings and of the mark ``timeout``: their words, and what a text must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.core.caseid import Shard
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.sim.native import faults

ISOLATIONS = ("batch", "case", "none")
STARTS = ("auto", "fork", "cold")
#: The word for every verdict that makes a run red, and all words that ``--only`` knows.
RED = "red"
VERDICTS = (*(outcome.value for outcome in Outcome), RED)
LEAK_CHECKS = ("off", "fast", "full")
RACE_CHECKS = ("off", "on")
#: The value of ``--leak-search`` for a share of the run's time.
AUTO = "auto"
PROGRESS = ("auto", "live", "plain", "off")
#: Diagnostics that can be collected when a case is red. The last one takes minutes, so ``auto`` leaves it out.
DIAGNOSTICS = ("nvidia-smi", "kernel-log", "allocator", "core", "bug-report")
#: From this number of cases on, it pays to import modules that only some cases need before the fork.
MANY_CASES = 10
JUNIT_FLAVOURS = ("default", "jenkins", "gitlab")


class OptionError(HarnessError):
    """The value of a setting is invalid."""


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """Return the parser of a setting with these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def parse_positive(text: str) -> float:
    """Return a number above 0. Raise ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf):
        raise ValueError("a number above 0")
    return number


def parse_duration(text: str) -> float:
    """Return seconds. Raise ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number <= 1e9):
        raise ValueError("a number of seconds from 0")
    return number


def parse_leak_search(text: str) -> str | float:
    """Return ``auto``, or seconds: 0 for ``off``. Raise ValueError."""
    if text in (AUTO, "off"):
        return AUTO if text == AUTO else 0.0
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("auto, off, or a number of seconds from 0") from None


def parse_progress(text: str) -> str | float:
    """Return one of `PROGRESS`, or seconds."""
    if text in PROGRESS:
        return text
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(f"{', '.join(PROGRESS)}, or a number of seconds from 0") from None


def parse_seed(text: str) -> int:
    """Return a seed of 64 bits. Raise ValueError."""
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError("a whole number from 0 to 2**64-1")
    return int(text)


def parse_flag(text: str) -> bool:
    """Return whether a setting is on. Raise ValueError."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    if text.lower() not in words:
        raise ValueError("1, 0, true, false, yes or no")
    return words[text.lower()]


def count_from(least: int) -> Callable[[str], int]:
    """Return the parser of a whole number that is at least `least`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) >= least):
            raise ValueError(f"a whole number from {least} to 999999")
        return int(text)

    return parse


def parse_name(text: str) -> str:
    """Return a name that is not empty. Raise ValueError."""
    if not text.strip():
        raise ValueError("a name or a file")
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Return several names, separated by commas."""
    return tuple(parse_name(part.strip()) for part in text.split(","))


def parse_injections(text: str) -> tuple[str, ...]:
    """Return faults, each in its short form. Whether the device of the run has them is checked later."""
    try:
        return tuple(str(injection) for injection in faults.parse_injections(text))
    except faults.InjectionError as error:
        raise ValueError(str(error)) from None


def parse_diagnostics(text: str) -> tuple[str, ...]:
    """Return the diagnostics to collect on a failure: ``off``, ``auto``, ``all``, or items separated by commas."""
    sets: dict[str, tuple[str, ...]] = {"off": (), "auto": DIAGNOSTICS[:-1], "all": DIAGNOSTICS}
    if text in sets:
        return sets[text]
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if any(word not in DIAGNOSTICS for word in words):
        raise ValueError(f"{', '.join(sets)}, or some of {', '.join(DIAGNOSTICS)}, separated by commas")
    return words


def parse_shard(text: str) -> str:
    """Return a shard in its plain form, so that it can be recorded and sent."""
    return str(Shard.parse(text))


def parse_outcomes(text: str) -> tuple[str, ...]:
    """Return verdicts, separated by commas."""
    words = tuple(part.strip() for part in text.split(","))
    if any(word not in VERDICTS for word in words):
        raise ValueError(f"verdicts separated by commas, of {', '.join(VERDICTS)}")
    return words


def parse_path(text: str) -> Path:
    """Return a folder. Raise ValueError."""
    if not text:
        raise ValueError("a folder")
    return Path(text)


def parse_paths(text: str) -> tuple[Path, ...]:
    """Return several folders, separated by commas."""
    return tuple(parse_path(part.strip()) for part in text.split(","))


#: The parameters of pytest-timeout's mark of the same name, in order. The harness uses the first, also called
#: ``seconds``.
_TIMEOUT_PARAMETERS = ("timeout", "method", "func_only")


def case_time_limit(marks: Sequence[pytest.Mark], default: float, multiplier: float) -> float:
    """Return the time limit of a case in seconds, from its ``timeout`` marks. The first mark counts. Raise OptionError.

    The forms of pytest-timeout's mark are accepted. ``timeout(0)``, which means no limit there, means the `default`
    here. With ``func_only=True`` the seconds are those of the call alone, so the `default` is added for set-up and
    teardown.
    """
    if not marks:
        return default * multiplier
    mark = marks[0]
    given: dict[str, object] = dict(zip(_TIMEOUT_PARAMETERS, mark.args, strict=False))
    named = {"timeout" if name == "seconds" else name: value for name, value in mark.kwargs.items()}
    wrong = [name for name in mark.kwargs if name not in ("seconds", *_TIMEOUT_PARAMETERS)]
    if wrong:
        raise OptionError(f"timeout({wrong[0]}=…): expected timeout(seconds)")
    if len(mark.args) > len(given) or given.keys() & named.keys() or len(named) < len(mark.kwargs):
        raise OptionError(f"timeout{_written(mark)}: expected one number of seconds")
    given |= named
    seconds, alone = given.get("timeout"), given.get("func_only", False) is True
    if seconds is None and given.keys() & {"method", "func_only"}:
        seconds = 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise OptionError(f"timeout{_written(mark)}: expected one number of seconds from 0")
    return (seconds + default * alone if seconds else default) * multiplier


def _written(mark: pytest.Mark) -> str:
    """Return the arguments of a mark as the user may have written them."""
    return f"({', '.join([*map(repr, mark.args), *(f'{name}={value!r}' for name, value in mark.kwargs.items())])})"
