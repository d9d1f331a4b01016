"""Series of results: the verdict over time on one case in one lane, and the begin of a group of failures. Pure.

A lane is a machine with a kind of device and a profile, so that its runs are comparable. `Observation`s come in the
order of their runs, and a run is a row of `answers.runs`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from itertools import groupby
from statistics import median
from typing import Any

from harness.checks.trend import theil_sen_slope
from harness.core.outcome import Outcome
from harness.core.text import natural_key
from harness.fleet.classing import CauseClass, ResultPlace, Sure, Tally, classify
from harness.fleet.statistics import wilson
from harness.journal.identity import FREE, FactDifference, differences

Run = Mapping[str, Any]

#: The number of runs in which flaky results and trends are searched.
WINDOW = 30
#: A case that was red this often in a row no longer counts as flaky.
STEADY = 3
#: A case is slower if its median rose by this factor and by this many seconds, and the probability of such a rise by
#: chance is below `TREND`. A single slow night is no trend.
SLOWER = 1.25
SLOWER_SECONDS = 0.05
TREND = 0.001
#: Least number of runs with a duration for a trend.
LEAST_RUNS = 10
#: Runs at either end of the window whose medians are compared.
END_RUNS = 5
#: The facts that are compared first, and bisected: columns of the table of runs.
FACTORS = ("driver", "cuda", "torch", "commit", "suites", "harness", "python", "host", "devices")
#: Facts of the identity that are factors already, or differ in each run.
_KNOWN = frozenset({"suite files", "torch", "driver", "device", "python", "harness", "--seed"})
_FREE = frozenset(f"--{name.replace('_', '-')}" for name in FREE)
#: Maximum differences that a text names.
MOST_CHANGES = 4


class VerdictTrend(StrEnum):
    """The state of a case over time."""

    GREEN = "green"
    REGRESSED = "regressed"
    ALWAYS_RED = "red since its first run"
    FLAKY = "flaky"
    FIXED = "fixed"
    GATED = "newly gated"
    NOT_RUN = "no result"


@dataclass(frozen=True, slots=True)
class Observation:
    """A result of the case. `run`: the number of the run. `seconds`: None if the case did not run.

    `host_memory`, `device_memory`: the peak memory in MiB; None if unknown.
    """

    run: int
    night: date
    outcome: Outcome
    device: str = ""
    seconds: float | None = None
    host_memory: float | None = None
    device_memory: float | None = None

    @property
    def bad(self) -> bool:
        return self.outcome.is_red or self.outcome is Outcome.FLAKY


@dataclass(frozen=True, slots=True)
class Slower:
    """A rise of the duration: medians at the begin and the end of the window, and the probability by chance."""

    before: float
    after: float
    chance: float

    @property
    def text(self) -> str:
        return f"{self.before:.2f} s, now {self.after:.2f} s"


@dataclass(frozen=True, slots=True)
class Story:
    """The verdict over time.

    `since`: the run in which the present state began. `before`: the last run before it with another result; None if
    there is none. `bad`, `ran`: results in the window. `interval`: the Wilson interval of the rate. `device`: the only
    device with bad results, unless chance explains that others have none.
    """

    kind: VerdictTrend
    since: int | None
    before: int | None
    bad: int
    ran: int
    interval: tuple[float, float]
    device: str = ""
    slower: Slower | None = None

    @property
    def rate(self) -> float:
        return self.bad / self.ran if self.ran else 0.0


def story(observations: Sequence[Observation]) -> Story:
    """Return the verdict over time."""
    ran = [each for each in observations if each.outcome.ran or each.outcome is Outcome.LOST]
    window = ran[-WINDOW:]
    bad = [each for each in window if each.bad]
    kind, since, before = _state(observations, ran, window)
    return Story(
        kind=kind,
        since=since,
        before=before,
        bad=len(bad),
        ran=len(window),
        interval=wilson(len(bad), len(window)),
        device=single_device(window),
        slower=slower([each.seconds for each in ran if each.seconds is not None and not each.outcome.is_red]),
    )


def _state(
    observations: Sequence[Observation], ran: Sequence[Observation], window: Sequence[Observation]
) -> tuple[VerdictTrend, int | None, int | None]:
    if not ran:
        return VerdictTrend.NOT_RUN, None, None
    silent = observations[[each.run for each in observations].index(ran[-1].run) + 1 :]
    if silent and silent[-1].outcome in (Outcome.GATED, Outcome.SKIPPED):
        return VerdictTrend.GATED, silent[0].run, ran[-1].run
    streaks = [(bad, list(streak)) for bad, streak in groupby(ran, key=lambda each: each.bad)]
    is_bad, last = streaks[-1]
    before = streaks[-2][1][-1].run if len(streaks) > 1 else None
    # A spell of STEADY red runs is a defect that was fixed, not a flake.
    spells = sum(bad and len(list(own)) < STEADY for bad, own in groupby(window, key=lambda each: each.bad))
    unsteady = spells > 1 or any(each.outcome is Outcome.FLAKY for each in window)
    steady = len(last) >= STEADY and not any(each.outcome is Outcome.FLAKY for each in last)
    first = last[0].run
    if is_bad:
        if unsteady and not steady:
            return VerdictTrend.FLAKY, first, before
        return (VerdictTrend.REGRESSED if before is not None else VerdictTrend.ALWAYS_RED), first, before
    if unsteady:
        return VerdictTrend.FLAKY, first, before
    if len(streaks) > 1 and last[0] in window:
        # One bad result between good ones is not a defect that was fixed.
        single = len(streaks[-2][1]) == 1 and len(streaks) > 2
        return (VerdictTrend.FLAKY if single else VerdictTrend.FIXED), first, before
    return VerdictTrend.GREEN, first, before


def single_device(observations: Sequence[Observation]) -> str:
    """Return the only device with bad results; "" if there is none, or if chance explains it."""
    counts = Counter((each.device, each.bad) for each in observations)
    tallies = {
        ResultPlace("", uuids=(device,) if device else ()): Tally(red=counts[device, True], green=counts[device, False])
        for device, _ in counts
    }
    classing = classify(tallies)
    if classing is None or classing.kind is not CauseClass.ONE_UUID or classing.sure is not Sure.STRONG:
        return ""
    return classing.causes[0].value


def slower(seconds: Sequence[float]) -> Slower | None:
    """Return the rise of the durations over the last runs; None without one. Single slow runs do not count."""
    values = list(seconds[-WINDOW:])
    if len(values) < LEAST_RUNS:
        return None
    before, after = median(values[:END_RUNS]), median(values[-END_RUNS:])
    if after < SLOWER * before or after - before < SLOWER_SECONDS:
        return None
    slope = theil_sen_slope(values)
    return Slower(before, after, slope.chance) if slope.chance < TREND else None


def changed(before: Run, after: Run) -> tuple[FactDifference, ...]:
    """Return the differences between two runs."""
    return differences(_facts(before), _facts(after))


def _facts(run: Run) -> dict[str, str]:
    """Return the facts of a run that can explain a difference. The history stores its identity as JSON."""
    identity = json.loads(run.get("identity") or "{}").items()
    facts = {name: str(run.get(name, "")) for name in FACTORS}
    return {**facts, **{name: text for name, text in identity if name not in _KNOWN and name not in _FREE}}


def changes_text(before: Run, after: Run) -> str:
    """Return the first differences between two runs as text."""
    found = changed(before, after)
    if not found:
        return "no known fact changed"
    more = f", and {len(found) - MOST_CHANGES} more" if len(found) > MOST_CHANGES else ""
    return f"{', '.join(difference.text for difference in found[:MOST_CHANGES])}{more}"


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


def suspects(onsets: Sequence[Onset], runs: Mapping[int, Run], presence: Sequence[tuple[int, bool]]) -> list[Suspect]:
    """Return the facts whose change may have caused a group, the likeliest first. `presence`: of all lanes."""
    pairs = [(runs[begin.before], runs[begin.since]) for begin in onsets if begin.before is not None]
    listed = []
    for name in FACTORS:
        good = {str(runs[run].get(name, "")) for run, present in presence if not present}
        bad = {str(runs[run].get(name, "")) for run, present in presence if present}
        moves = [(str(a.get(name, "")), str(b.get(name, ""))) for a, b in pairs]
        moved = [(a, b) for a, b in moves if a != b]
        separates = bool(good and bad) and good.isdisjoint(bad)
        if moved:
            pair = max(set(moved), key=lambda move: (moved.count(move), move))
        elif separates:
            pair = _nearest(good, bad)
        else:
            continue
        listed.append(Suspect(name, *pair, lanes=len(moved), of=len(pairs), separates=separates))
    return sorted(listed, key=lambda suspect: (not suspect.separates, -suspect.lanes, FACTORS.index(suspect.name)))


def _nearest(good: set[str], bad: set[str]) -> tuple[str, str]:
    """Return the nearest pair of versions: the last good one below the first bad one."""
    first_bad = min(bad, key=natural_key)
    below = [value for value in good if natural_key(value) < natural_key(first_bad)]
    return (max(below, key=natural_key) if below else min(good, key=natural_key)), first_bad


def deciding_commands(listed: Sequence[Suspect], case: str, reproduce: str) -> Iterator[str]:
    """Yield the commands that decide between the values of the first suspect, with a remark on what to install."""
    command = reproduce or f"pytest {shlex.quote(case)}"
    if not listed:
        yield command
        return
    first = listed[0]
    commit = next((suspect for suspect in listed if suspect.name == "commit"), None)
    if first.name in ("commit", "suites", "harness") and commit is not None:
        yield f"git bisect start {shlex.quote(commit.bad)} {shlex.quote(commit.good)}"
        yield f"git bisect run sh -c {shlex.quote(command)}"
        return
    for value, colour in ((first.good, "green"), (first.bad, "red")):
        if first.name == "torch":
            yield f"pip install {shlex.quote(f'torch=={value}')} && {command}  # expected {colour}"
        else:
            yield f"{command}  # with {first.name} {value}: expected {colour}"
