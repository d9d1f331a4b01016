"""Every setting, and the one way it is resolved: marker > command line > environment > ini file > default."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError

ISOLATIONS = ("batch", "case", "none")


class OptionError(HarnessError):
    """A setting with a value that cannot be used."""


def _isolation(text: str) -> str:
    if text not in ISOLATIONS:
        raise ValueError(f"one of {', '.join(ISOLATIONS)}")
    return text


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf):
        raise ValueError("a number above 0")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError("a whole number from 0 to 2**64-1")
    return int(text)


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    if text.lower() not in words:
        raise ValueError("1, 0, true, false, yes or no")
    return words[text.lower()]


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a folder")
    return Path(text)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``--case-timeout``, ``HARNESS_CASE_TIMEOUT``, and ``harness_case_timeout`` in an ini file."""

    flag: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str | None = None

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def dest(self) -> str:
        return f"harness_{self.name}"

    @property
    def variable(self) -> str:
        return f"HARNESS_{self.name.upper()}"


OPTIONS = {
    option.name: option
    for option in (
        Option("--isolation", _isolation, "batch", "how cases are kept apart: batch, case or none", "MODE"),
        Option(
            "--case-timeout", _positive, 300.0, "seconds a case may take, unless its timeout marker says", "SECONDS"
        ),
        Option("--timeout-multiplier", _positive, 1.0, "factor on every time limit, for slow machines", "FACTOR"),
        Option("--seed", _seed, None, "seed of the run (default: drawn and printed)", "N"),
        Option("--results-dir", _path, None, "run directory (default: results/<time>-<id>)", "DIR"),
        Option("--fail-on-flaky", _flag, False, "a flaky case makes the run red"),
    )
}


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and ini values to pytest."""
    group = parser.getgroup("harness", "conformance harness")
    for option in OPTIONS.values():
        text = f"{option.help} [env: {option.variable}, ini: {option.dest}]"
        if option.parse is _flag:
            group.addoption(option.flag, dest=option.dest, action="store_const", const="1", default=None, help=text)
        else:
            group.addoption(option.flag, dest=option.dest, metavar=option.metavar, default=None, help=text)
        parser.addini(option.dest, f"see {option.flag}", type="string", default=None)
    parser.addini("harness_suites", "folders whose tests are conformance cases", type="paths", default=[])
    preload = "modules imported before cases are forked"
    parser.addini("harness_preload", preload, type="args", default=["torch", "numpy.random"])


def resolve(name: str, command_line: str | None, environ: Mapping[str, str], ini: str | None) -> Any:
    """The value of an option from its sources. Raises OptionError naming the source that holds a bad value."""
    option = OPTIONS[name]
    for source, text in (
        (option.flag, command_line),
        (option.variable, environ.get(option.variable)),
        (option.dest, ini),
    ):
        if text is None or (text == "" and source != option.flag):
            continue
        try:
            return option.parse(text)
        except ValueError as error:
            raise OptionError(f"{source}={text!r}: expected {error}") from None
    return option.default


def get(config: pytest.Config, name: str) -> Any:
    """The value of an option for this session. Raises pytest.UsageError."""
    option = OPTIONS[name]
    try:
        return resolve(name, config.getoption(option.dest), os.environ, config.getini(option.dest))
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None


def given(config: pytest.Config) -> bool:
    """Whether the user said anything to the harness on the command line or in the environment."""
    return any(
        config.getoption(option.dest) is not None or os.environ.get(option.variable) for option in OPTIONS.values()
    )


def steps_aside(config: pytest.Config) -> str | None:
    """The pytest option for which isolation steps aside, since it needs the test in pytest's own process."""
    option = config.option
    for flag, wanted in (
        ("--pdb", getattr(option, "usepdb", False)),
        ("--trace", getattr(option, "trace", False)),
        ("-s", getattr(option, "capture", None) == "no"),
        ("--setup-show", getattr(option, "setupshow", False)),
        ("--setup-only", getattr(option, "setuponly", False)),
        ("--setup-plan", getattr(option, "setupplan", False)),
    ):
        if wanted:
            return flag
    return None


def case_limit(marks: Sequence[pytest.Mark], default: float, multiplier: float) -> float:
    """The time limit of a case in seconds, from its ``timeout`` marks, nearest first. Raises OptionError."""
    if not marks:
        return default * multiplier
    mark = marks[0]
    match (*mark.args, *mark.kwargs.values()):
        case [int() | float() as seconds] if not isinstance(seconds, bool) and 0 < seconds < math.inf:
            if mark.kwargs and "seconds" not in mark.kwargs:
                raise OptionError(f"timeout({next(iter(mark.kwargs))}=…): expected timeout(seconds)")
            return float(seconds) * multiplier
        case values:
            raise OptionError(f"timeout{values!r}: expected one number of seconds above 0")
