"""What has been renamed between two catalogues: tests are known again by what a new name does not change. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.gating.renamed import Renamed, split


class Case(Protocol):
    """What a catalogue says of a case, as far as it matters here."""

    @property
    def id(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Renaming:
    """`tests`: from old to new names. `gone`: old cases that none continues. `added`: new cases without an old."""

    tests: Mapping[str, str]
    gone: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Test:
    name: str
    file: str
    parameters: frozenset[str]
    description: str
    fingerprint: str


def match(old: Sequence[Case], new: Sequence[Case]) -> Renaming:
    """Match the tests of two catalogues. A name that still exists is no renaming.

    A test is known again by the fingerprint of its code, by its description, by its parameters and its file: first by
    all of them, then by fewer. Two tests that are alike in what is compared are not matched by it.
    """
    before, after = _tests(old), _tests(new)
    left = {name: test for name, test in before.items() if name not in after}
    free = {name: test for name, test in after.items() if name not in before}
    found: dict[str, str] = {}
    for key in _KEYS:
        for was, now in _pairs(left.values(), free.values(), key):
            found[was] = now
            del left[was], free[now]
    renamed = Renamed(found)
    ids = {case.id for case in new}
    reached = {renamed.now(case.id): case.id for case in old}
    return Renaming(
        tests=found,
        gone=tuple(case_id for now, case_id in reached.items() if now not in ids),
        added=tuple(case.id for case in new if case.id not in reached),
    )


_Key = Callable[[_Test], Hashable]
#: What makes two tests the same, the strictest first. None: the test lacks what is compared.
_KEYS: tuple[_Key, ...] = (
    lambda test: test.fingerprint and (test.file, test.fingerprint, test.description, test.parameters),
    lambda test: test.fingerprint and (test.file, test.fingerprint, test.parameters),
    lambda test: test.description and (test.file, test.description, test.parameters),
    lambda test: test.description and (test.file, test.description),
    lambda test: test.fingerprint and (test.fingerprint, test.description, test.parameters),
    lambda test: test.description and (test.description, test.parameters),
    lambda test: test.fingerprint and (test.file, test.fingerprint),
)


def _tests(cases: Sequence[Case]) -> dict[str, _Test]:
    parameters: dict[str, set[str]] = defaultdict(set)
    first: dict[str, Case] = {}
    for case in cases:
        name, given = split(case.id)
        parameters[name].add(given)
        first.setdefault(name, case)
    return {
        name: _Test(name, name.partition("::")[0], frozenset(parameters[name]), case.description, case.fingerprint)
        for name, case in first.items()
    }


def _pairs(old: Iterable[_Test], new: Iterable[_Test], key: _Key) -> list[tuple[str, str]]:
    """The tests that are alike in `key`, where there is one of each."""
    groups: dict[Hashable, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for place, tests in enumerate((old, new)):
        for test in tests:
            if found := key(test):
                groups[found][place].append(test.name)
    return [(was[0], now[0]) for was, now in groups.values() if len(was) == len(now) == 1]
