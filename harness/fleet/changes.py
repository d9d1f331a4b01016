"""The changes between two runs, and the change with which a group of failures began. Pure functions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.journal.identity import FREE, FactDifference, differences

#: The facts that are compared first, and bisected: columns of the table of runs, by their names in reports.
FACTORS = {
    "driver": "driver",
    "cuda": "cuda",
    "torch": "torch",
    "commit": "commit",
    "suites": "suites",
    "harness": "harness",
    "python": "python",
    "host": "host",
    "devices": "devices",
}
#: Facts of the identity that are factors already, or differ in each run.
_KNOWN = frozenset({"suite files", "torch", "driver", "device", "python", "harness", "--seed"})
_FREE = frozenset(f"--{name.replace('_', '-')}" for name in FREE)
_NUMBERS = re.compile(r"\d+")


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FactDifference, ...]:
    """Return the differences between two runs: rows of `answers.runs`, with `identity` and `devices`."""
    first = {name: str(before.get(column, "")) for name, column in FACTORS.items()}
    second = {name: str(after.get(column, "")) for name, column in FACTORS.items()}
    changes = differences(first, second)
    identity = differences(_identity(before), _identity(after))
    return (
        *changes,
        *(difference for difference in identity if difference.name not in _KNOWN and difference.name not in _FREE),
    )


def _identity(run: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the identity of a run, which the history stores as text."""
    kept = run.get("identity") or {}
    return json.loads(kept) if isinstance(kept, str) else kept


@dataclass(frozen=True, slots=True)
class Onset:
    """The begin of a group in a lane.

    `before`: the last run in which its cases ran without it; None if it has been there since the lane's first run.
    `since`: the first run of the present or last spell. `until`: the run that no longer had it; None if it is still
    there. `runs`: how many of the lane's runs had it.
    """

    lane: str
    before: int | None
    since: int
    until: int | None
    runs: int


def onset(lane: str, presence: Sequence[tuple[int, bool]]) -> Onset | None:
    """Return the begin of a group.

    `presence`: the runs of the lane in which its cases ran, and whether it was there.
    """
    there = [place for place, (_, present) in enumerate(presence) if present]
    if not there:
        return None
    last = there[-1]
    start = last
    while start > 0 and presence[start - 1][1]:
        start -= 1
    return Onset(
        lane=lane,
        before=presence[start - 1][0] if start > 0 else None,
        since=presence[start][0],
        until=presence[last + 1][0] if last + 1 < len(presence) else None,
        runs=len(there),
    )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A fact whose change may have caused a group.

    `good`, `bad`: the pair of values between which the group began. `lanes`: how many lanes changed from one value to
    the other there; `of`: how many lanes have runs before and after. `separates`: no run with the group has a value of
    a run without it, so that the fact alone explains all runs.
    """

    name: str
    good: str
    bad: str
    lanes: int
    of: int
    separates: bool


def suspects(
    onsets: Sequence[Onset], runs: Mapping[int, Mapping[str, Any]], presence: Sequence[tuple[int, bool]]
) -> list[Suspect]:
    """Return the facts whose change may have caused a group, the likeliest first. `presence`: of all lanes."""
    pairs = [(runs[begin.before], runs[begin.since]) for begin in onsets if begin.before is not None]
    listed = []
    for name, column in FACTORS.items():
        good = {str(runs[run].get(column, "")) for run, present in presence if not present}
        bad = {str(runs[run].get(column, "")) for run, present in presence if present}
        moves = [(str(a.get(column, "")), str(b.get(column, ""))) for a, b in pairs]
        moved = [(a, b) for a, b in moves if a != b]
        separates = bool(good and bad) and good.isdisjoint(bad)
        if moved:
            pair = max(set(moved), key=lambda move: (moved.count(move), move))
        elif separates:
            pair = _nearest(good, bad)
        else:
            continue
        listed.append(Suspect(name, *pair, lanes=len(moved), of=len(pairs), separates=separates))
    order = list(FACTORS)
    return sorted(listed, key=lambda suspect: (not suspect.separates, -suspect.lanes, order.index(suspect.name)))


def _nearest(good: set[str], bad: set[str]) -> tuple[str, str]:
    """Return the nearest pair of versions: the last good one below the first bad one."""
    first_bad = min(bad, key=version_key)
    below = [value for value in good if version_key(value) < version_key(first_bad)]
    return (max(below, key=version_key) if below else min(good, key=version_key)), first_bad


def version_key(text: str) -> tuple[tuple[int, ...], str]:
    """Return the key that orders versions: their numbers, then the text."""
    return tuple(int(number[:18]) for number in _NUMBERS.findall(text)), text


def deciding_commands(listed: Sequence[Suspect], case: str, reproduce: str) -> Iterator[str]:
    """Yield the commands that decide between the values of the first suspect, with a remark on what to install."""
    command = reproduce or f"pytest {shlex.quote(case)}"
    if not listed:
        yield command
        return
    first = listed[0]
    if first.name in ("commit", "suites", "harness") and (commit := _of(listed, "commit")) is not None:
        yield f"git bisect start {shlex.quote(commit.bad)} {shlex.quote(commit.good)}"
        yield f"git bisect run sh -c {shlex.quote(command)}"
    elif first.name == "torch":
        yield f"pip install {shlex.quote(f'torch=={first.good}')} && {command}  # expected green"
        yield f"pip install {shlex.quote(f'torch=={first.bad}')} && {command}  # expected red"
    else:
        yield f"{command}  # with {first.name} {first.good}: expected green"
        yield f"{command}  # with {first.name} {first.bad}: expected red"


def _of(listed: Sequence[Suspect], name: str) -> Suspect | None:
    return next((suspect for suspect in listed if suspect.name == name), None)
