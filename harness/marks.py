"""The marks of the harness, and their ownership in a project that has marks of the same names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import pytest

from harness.core.errors import HarnessError

MARKERS = (
    "requires(**conditions): what the case needs from device, driver and software, for example "
    "requires(device='cuda', memory='>=12GiB'); if a condition is not met, the case is gated",
    "types(*names): the types of tensors on the device that the case needs beside those of its parameters, for example "
    "types('float64'); it is gated if the run's hardware file declares that the device lacks one",
    "covers(*rows): the rows of the reference inventory that the case checks, by name",
    "leaks(reason, *, link, kind='leaked'): a waiver for a known leak or, with kind='contaminated', for known changed "
    "state; the case is red if it no longer leaks or changes state",
    "keeps(reason, *, tensors, host, pinned): the code under test keeps memory for good on every run: at most so many "
    "tensors, host memory ('64KiB') and pinned memory per run; without any of these, tensors and host memory without "
    "limit; everything else is still checked",
    "races(reason): the case uses memory without an order between its streams on purpose; --race-check does not look "
    "at it",
    "extended: the case is not part of the default run; --extended, a profile with `extended: true`, --operators and "
    "the id of the case on the command line select it",
    "operator(*names): the operators of torch that the case is about; --operators selects by these names",
    "serial: the case has its devices alone, also where several cases may use one device at once",
    "own_process: the case has an executor that no other case has used or will use",
    "endurance: the case works for the seconds of --endurance, which are added to its time limit",
    "timeout(seconds): the time limit of the case, including setup and teardown",
)


def _name(line: str) -> str:
    return line.partition(":")[0].partition("(")[0].strip()


#: The names of `MARKERS`, in their order.
NAMES = tuple(map(_name, MARKERS))
_SIGNATURES = frozenset(line.partition(":")[0] for line in MARKERS if "(" in line.partition(":")[0])
#: Marks that other plugins declare for the same purpose.
_SHARED = frozenset({"timeout"})
#: The similarity of two words, from 0 to 1, from which one is a misspelt form of the other. `serialize` is not one of
#: `serial`.
_ALIKE = 0.85
#: The marks of the harness, and those of other plugins, by the number of lines that were declared at that time.
_DECLARED = pytest.StashKey[tuple[int, frozenset[str], frozenset[str]]]()
#: Whether marks may belong to the project: a foreign suite was not written for the harness.
_FOREIGN = pytest.StashKey[bool]()


def declare(config: pytest.Config, *, foreign: bool) -> None:
    """Declare the marks to pytest. Marks of a `foreign` suite may belong to its project, see `marks_of_project`.

    Marks of other plugins are not declared for such a suite: where they are unknown, pytest says so, as it does without
    the harness. A project that names its suites (`harness_suites`) knows the harness.
    """
    config.stash[_FOREIGN] = foreign
    unknown = _SHARED if foreign and not config.getini("harness_suites") else frozenset()
    for marker in MARKERS:
        if _name(marker) not in unknown:
            config.addinivalue_line("markers", marker)


def declared_by_others(lines: Iterable[str]) -> frozenset[str]:
    """Return the names of the harness's marks that lines of pytest's ini value ``markers`` declare differently.

    A line with the signature of the harness's own mark, such as ``requires(**conditions)``, means the same mark: a
    project declares it for runs without the harness.
    """
    others = (line for line in lines if line not in MARKERS and line.partition(":")[0].strip() not in _SIGNATURES)
    return frozenset(map(_name, others)).intersection(NAMES)


def marks_of_project(config: pytest.Config) -> frozenset[str]:
    """Return the names of marks that the harness does not read.

    A foreign suite or a plugin declares its own mark of this name.
    """
    return _declared(config)[1] - _SHARED if config.stash.get(_FOREIGN, False) else frozenset()


def format_marks_of_project(names: Iterable[str]) -> str:
    """Return a line for people about these marks; empty if there are none."""
    text = ", ".join(sorted(names))
    return f"{text}: marks that another plugin, a conftest or an ini file declares, not the harness's" if text else ""


def all_marks(item: pytest.Item) -> list[pytest.Mark]:
    """Return all marks of a test, the nearest first, except those with names of the harness that it does not read."""
    others = marks_of_project(item.config)
    return [mark for mark in item.iter_markers() if mark.name not in others]


def marks_of(item: pytest.Item, name: str) -> list[pytest.Mark]:
    """Return the marks of the harness with this name, the nearest first: those of the test, its class, its module."""
    return [] if name in marks_of_project(item.config) else list(item.iter_markers(name))


def nearest_mark(item: pytest.Item, name: str) -> pytest.Mark | None:
    """Return the nearest of `marks_of`; None without one."""
    return next(iter(marks_of(item, name)), None)


def reason_for_races(item: pytest.Item) -> str | None:
    """Return the reason of the nearest mark ``races``; None without one. Raise HarnessError for an invalid mark."""
    mark = nearest_mark(item, "races")
    if mark is None:
        return None
    values = [*mark.args, *mark.kwargs.values()]
    if len(values) != 1 or set(mark.kwargs) - {"reason"} or not isinstance(values[0], str) or not values[0].strip():
        raise HarnessError("races(...) needs one reason: why the case leaves out the order")
    return values[0]


def misspelt_marks(item: pytest.Item) -> list[str]:
    """Return a sentence for each undeclared mark on a case whose name is similar to one of the harness's."""
    declared = _declared(item.config)[0]
    known = declared | _SHARED
    unknown = dict.fromkeys(mark.name for mark in item.iter_markers() if mark.name not in known)
    pairs = [(name, get_close_matches(name, NAMES, 1, _ALIKE)) for name in unknown]
    return [f"unknown mark {name!r}; did you mean {near[0]!r}?" for name, near in pairs if near]


def _declared(config: pytest.Config) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all declared marks, and of those that others declare differently.

    Conftests add lines later.
    """
    lines = config.getini("markers")
    cached = config.stash.get(_DECLARED, None)
    if cached is None or cached[0] != len(lines):
        cached = config.stash[_DECLARED] = len(lines), frozenset(map(_name, lines)), declared_by_others(lines)
    return cached[1:]
