"""The results of a run of PyTorch's own tests: each test in one class, counts, a rate, and the most common causes.

All functions are pure.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from harness.core.outcome import Outcome


class Why(StrEnum):
    """The reason for a failure."""

    TORCH_CHANGED = "torch changed"  # the test is for another torch, and would fail on a GPU, too
    SILICON = "silicon"  # only a GPU can do it
    SIMULATOR = "simulator"  # the simulation lacks it, or is wrong
    MACHINE = "machine"  # it lacks something unrelated to GPUs, such as a network
    RACED = "raced"  # the test, or torch, leaves out an order between streams; the check for races says that


class Kind(StrEnum):
    """The result of one test. An explained failure has the class of its explanation."""

    PASSED = "passed"
    SKIPPED = "skipped"  # by the test itself
    TORCH_CHANGED = "torch changed"
    SILICON = "silicon"
    SIMULATOR = "simulator"
    MACHINE = "machine"
    RACED = "raced"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Case:
    """One test of the run. `test` is file, class and name, without the folder `test`; `message` is one line.

    `torch`: the release that it ran with, such as ``2.13.0+cu130``.
    """

    test: str
    outcome: Outcome
    message: str
    torch: Version

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason for failures of tests. `tests` is a glob over `Case.test`. `message` occurs in the failure's message.

    So it does not explain a test that begins to fail in another way. `torch`: the releases to which it applies.
    """

    tests: str
    message: str
    why: Why
    reason: str
    torch: SpecifierSet = field(default_factory=SpecifierSet)

    def is_about(self, case: Case) -> bool:
        """Return whether it would explain a failure of this test with this torch."""
        return fnmatch.fnmatchcase(case.test, self.tests) and self.torch.contains(case.torch, prereleases=True)

    def explains(self, case: Case) -> bool:
        """Return whether it is the reason for the outcome. Only a reason for races explains one, and nothing else."""
        if (self.why is Why.RACED) is not (case.outcome is Outcome.RACED):
            return False
        return self.is_about(case) and re.search(self.message, case.message) is not None


class ExplanationError(Exception):
    """An explanation is invalid."""


def explanations(rows: object) -> tuple[Explanation, ...]:
    """Return the explanations in the rows of a YAML file. Raise ExplanationError, which names the row and the key."""
    if not isinstance(rows, list):
        raise ExplanationError(f"expected a list of explanations, found {type(rows).__name__}")
    return tuple(_explanation(number, row) for number, row in enumerate(rows, 1))


def _explanation(number: int, row: object) -> Explanation:
    wanted = {"tests", "message", "why", "reason"}
    if (
        not isinstance(row, dict)
        or set(row) - {"torch"} != wanted
        or not all(isinstance(value, str) for value in row.values())
    ):
        some = ", ".join(sorted(wanted))
        raise ExplanationError(f"explanation {number}: expected texts for {some}, and perhaps torch; found {row!r}")
    try:
        re.compile(row["message"])
    except re.error as error:
        raise ExplanationError(f"explanation {number}: message {row['message']!r} is no pattern: {error}") from None
    try:
        torch = SpecifierSet(row.get("torch", ""))
    except InvalidSpecifier:
        raise ExplanationError(
            f"explanation {number}: torch {row['torch']!r}, expected releases such as '>=2.13' or '<2.14'"
        ) from None
    whys = [str(why) for why in Why]
    if row["why"] not in whys:
        raise ExplanationError(f"explanation {number}: why {row['why']!r}, expected one of {', '.join(whys)}")
    return Explanation(row["tests"], row["message"], Why(row["why"]), row["reason"], torch)


def explanation(case: Case, known: Sequence[Explanation]) -> Explanation | None:
    """Return the first explanation of the failure."""
    return next((each for each in known if each.explains(case)), None)


def kind(case: Case, known: Sequence[Explanation]) -> Kind:
    """Return the class of a test. A failure that the test itself expects counts as passed, as it does for PyTorch.

    So does a test that broke in a process with others and passed alone.
    """
    if case.outcome in (Outcome.PASSED, Outcome.WAIVED, Outcome.FLAKY):
        return Kind.PASSED
    if case.outcome in (Outcome.SKIPPED, Outcome.GATED):
        return Kind.SKIPPED
    found = explanation(case, known)
    return Kind.UNEXPLAINED if found is None else Kind(str(found.why))


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one file."""

    file: str
    counts: Mapping[Kind, int]

    @property
    def tests(self) -> int:
        return sum(self.counts.values())

    @property
    def supported(self) -> int:
        """The number of tests that this torch still supports, and that do not skip themselves."""
        return self.tests - self.counts[Kind.SKIPPED] - self.counts[Kind.TORCH_CHANGED]

    @property
    def rate(self) -> str:
        """The percentage of the supported tests that pass, rounded down: 100.0 is all of them."""
        if self.supported == 0:
            return "-"
        return f"{1000 * self.counts[Kind.PASSED] // self.supported / 10:.1f}"


def rows(cases: Iterable[Case], known: Sequence[Explanation]) -> tuple[Row, ...]:
    """Return a row per file, in order of appearance."""
    counts: dict[str, Counter[Kind]] = {}
    for case in cases:
        counts.setdefault(case.file, Counter())[kind(case, known)] += 1
    return tuple(Row(file, found) for file, found in counts.items())


def markdown(found: Iterable[Row], titles: Mapping[str, str]) -> str:
    """Return the table of all files, with their titles."""
    head = ["file", "tests", *(str(each) for each in Kind), "passed of supported, %"]
    lines = [head, ["---"] * len(head)]
    for row in found:
        counts = [str(row.counts[each] or "") for each in Kind]
        lines.append([titles[row.file], str(row.tests), *counts, row.rate])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


def causes(cases: Iterable[Case], known: Sequence[Explanation]) -> list[tuple[str, list[Case]]]:
    """Return the failures by the first line of their error without numbers; the most common first."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if kind(case, known) not in (Kind.PASSED, Kind.SKIPPED):
            found.setdefault(_NUMBERS.sub("N", case.message), []).append(case)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def unused(known: Sequence[Explanation], cases: Sequence[Case]) -> tuple[Explanation, ...]:
    """Return the explanations of these cases that explain no failure: the test passes, or fails in another way.

    Those of races only if something raced: most runs do not look for races.
    """
    checked = any(case.outcome is Outcome.RACED for case in cases)
    return tuple(
        each
        for each in known
        if (checked or each.why is not Why.RACED)
        and any(each.is_about(case) for case in cases)
        and not any(kind(case, [each]) is Kind(str(each.why)) for case in cases)
    )


def without_tests(files: Iterable[str], cases: Iterable[Case]) -> tuple[str, ...]:
    """Return the files of which no test ran: pytest could not import them, usually because torch has lost a name."""
    found = {case.file for case in cases}
    return tuple(file for file in files if file not in found)
