"""Where a group of failures began, and the change with which it began."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.core.text import natural_key
from harness.fleet.timeline import Onset, Suspect, changed, deciding_commands, onset, suspects


def runs(**columns: str) -> dict[int, dict[str, Any]]:
    """Return runs numbered from 0; each column has a letter per run."""
    number = len(next(iter(columns.values())))
    return {place: {name: text[place] for name, text in columns.items()} for place in range(number)}


def presence(letters: str, first: int = 0) -> list[tuple[int, bool]]:
    return [(first + place, letter == "X") for place, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("....", None),
        ("..XX", (1, 2, None)),
        ("XX..", (None, 0, 2)),
        (".XX.X", (3, 4, None)),
        (".XX..", (0, 1, 3)),
    ],
)
def test_the_begin_of_the_last_spell(letters: str, expected: tuple[int | None, int, int | None] | None) -> None:
    found = onset("lane", presence(letters))
    assert (None if found is None else (found.before, found.since, found.until)) == expected


def test_what_changed_is_named_once() -> None:
    first = json.dumps({"torch": "2", "--seed": "1", "--profile": "a", "--grace": "1"})
    second = json.dumps({"torch": "2", "--seed": "2", "--profile": "b", "--grace": "2"})
    before = {"driver": "570", "torch": "2", "identity": first}
    after = {"driver": "580", "torch": "2", "identity": second}
    assert [each.name for each in changed(before, after)] == ["driver", "--profile"]


def found_of(known: dict[int, dict[str, Any]], *letters: str) -> list[Suspect]:
    onsets: list[Onset] = []
    every = []
    at = 0
    for place, each in enumerate(letters):
        there = presence(each, at)
        begun = onset(f"lane{place}", there)
        onsets += [] if begun is None else [begun]
        every += there
        at += len(each)
    return suspects(onsets, known, every)


def test_the_driver_that_changed_is_named_with_its_pair() -> None:
    known = runs(driver="aabbaabbaaaa", torch="111111111111", commit="abcdabcdabcd")
    first, *others = found_of(known, "..XX", "..XX", "....")
    assert first == Suspect("driver", "a", "b", lanes=2, of=2, separates=True)
    # Each night has a new commit; the same commits are good on the third machine.
    assert [(each.name, each.separates) for each in others] == [("commit", False)]


def test_versions_that_separate_machines_are_a_pair_of_neighbours() -> None:
    known = runs(driver="1123")
    (first,) = found_of(known, ".", ".", "X", "X")
    assert first == Suspect("driver", "1", "2", lanes=0, of=0, separates=True)


def test_versions_are_ordered_by_their_numbers() -> None:
    assert sorted(["580.105", "580.95", "570.1"], key=natural_key) == ["570.1", "580.95", "580.105"]
    assert sorted(["²", "10", "9"], key=natural_key) == ["9", "10", "²"]  # a digit that is no number


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "torch",
            ["pip install torch==a && pytest c  # expected green", "pip install torch==b && pytest c  # expected red"],
        ),
        ("commit", ["git bisect start b a", "git bisect run sh -c 'pytest c'"]),
        ("driver", ["pytest c  # with driver a: expected green", "pytest c  # with driver b: expected red"]),
    ],
)
def test_the_command_that_decides(name: str, expected: list[str]) -> None:
    assert list(deciding_commands([Suspect(name, "a", "b", 1, 1, True)], "c", "pytest c")) == expected


def test_without_a_suspect_the_case_runs_again() -> None:
    assert list(deciding_commands([], "a b", "")) == ["pytest 'a b'"]
