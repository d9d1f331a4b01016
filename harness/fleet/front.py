"""The front page of a history as values: the last night, red groups, news, and suspicious devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from harness.core.text import format_count
from harness.fleet import suspicion
from harness.fleet.answers import STALE, Answers, FailureGroup, HistoryFailure, Lane, Night, SlowCase
from harness.fleet.changes import changed
from harness.journal.identity import FactDifference

#: Maximum differences of one onset that a text names.
MOST_CHANGES = 4


@dataclass(frozen=True, slots=True)
class Outbreak:
    """Red groups that began in the same runs, probably for one cause. `began`: texts by lane."""

    groups: tuple[FailureGroup, ...]
    began: tuple[str, ...]
    first: date

    @property
    def cases(self) -> int:
        return sum(group.open_cases for group in self.groups)


@dataclass(frozen=True, slots=True)
class Front:
    """The front page. `lanes`: those with a present state; `stale`: the others.

    `groups`: red groups of the latest runs. `findings`: lane, kind and message of each finding of these runs.
    """

    night: date
    nights: tuple[Night, ...]
    lanes: tuple[Lane, ...]
    stale: tuple[Lane, ...]
    groups: tuple[FailureGroup, ...]
    findings: tuple[tuple[str, str, str], ...]
    outbreaks: tuple[Outbreak, ...]
    suspicions: tuple[suspicion.DeviceSuspicion, ...]
    flaky: tuple[tuple[str, int, int, int], ...]
    slow: tuple[SlowCase, ...]
    not_run: tuple[tuple[str, date, str], ...]
    never_run: tuple[tuple[str, int], ...]
    healed: tuple[HistoryFailure, ...]
    runs: Mapping[int, Mapping[str, Any]]

    @property
    def red(self) -> bool:
        """Whether the latest run of a lane is red."""
        return any(lane.run["exit_status"] not in (0, 5) for lane in self.lanes)

    @property
    def suspicious(self) -> tuple[suspicion.DeviceSuspicion, ...]:
        return tuple(device for device in self.suspicions if device.suspicious)


def front(answers: Answers) -> Front:
    """Return the front page."""
    newest = answers.last_night
    lanes = answers.lanes()
    groups = answers.groups()
    present = [lane for lane in lanes if not answers.is_stale(lane, newest)]
    return Front(
        night=newest,
        nights=tuple(answers.nights()),
        lanes=tuple(present),
        stale=tuple(lane for lane in lanes if answers.is_stale(lane, newest)),
        groups=tuple(groups),
        findings=tuple(
            (lane.lane, kind, message)
            for lane in present
            for kind, message, _ in answers.findings(int(lane.run["run"]))
        ),
        outbreaks=outbreaks(groups, answers.runs),
        suspicions=tuple(suspicion.suspicions(answers.database)),
        flaky=tuple(answers.flaky_cases()),
        slow=tuple(answers.slow_cases()),
        not_run=tuple(answers.not_run()),
        never_run=tuple(answers.never_run()),
        healed=tuple(answers.healed_waivers()),
        runs=answers.runs,
    )


def outbreaks(groups: Sequence[FailureGroup], runs: Mapping[int, Mapping[str, Any]]) -> tuple[Outbreak, ...]:
    """Return the groups by the runs in which their present spells began, the latest first."""
    by_begin: dict[frozenset[tuple[str, int]], list[FailureGroup]] = {}
    for group in groups:
        by_begin.setdefault(
            frozenset((onset.lane, onset.since) for onset in group.onsets if onset.until is None), []
        ).append(group)
    made = [
        Outbreak(
            groups=tuple(own),
            began=tuple(began_texts(own[0], runs, only_open=True)),
            first=min((runs[run]["night"] for _, run in begin), default=own[0].first),
        )
        for begin, own in by_begin.items()
    ]
    return tuple(sorted(made, key=lambda outbreak: (outbreak.first, outbreak.cases), reverse=True))


def age_text(first: date, newest: date) -> str:
    """Return for example ``new`` or ``since 2026-03-02, 12 nights``."""
    nights = (newest - first).days
    return "new" if nights == 0 else f"since {first}, {format_count(nights, 'night')}"


def spread_text(group: FailureGroup) -> str:
    """Return for example ``12 cases on 3 machines``."""
    cases = format_count(group.open_cases or group.cases, "case")
    return f"{cases} on {format_count(group.open_lanes or len(group.lanes), 'machine')}"


def began_texts(group: FailureGroup, runs: Mapping[int, Mapping[str, Any]], *, only_open: bool = False) -> list[str]:
    """Return where the group began, by lane that has it: the run, and its differences from the previous run."""
    texts = []
    for onset in group.onsets:
        if only_open and onset.until is not None:
            continue
        run = runs[onset.since]
        where = f"{onset.lane}: {run['run_id']} ({run['night']})"
        if onset.before is None and run["night"] > group.first and len(group.lanes) == 1:
            texts.append(f"{onset.lane}: before {run['night']}")
        elif onset.before is None:
            texts.append(f"{where}, the first run of its cases there")
        else:
            texts.append(f"{where}; {changes_text(changed(runs[onset.before], run))}")
        if onset.until is not None:
            texts[-1] += f"; gone since {runs[onset.until]['run_id']} ({runs[onset.until]['night']})"
    return texts


def changes_text(differences: tuple[FactDifference, ...]) -> str:
    """Return the first differences between two runs as text."""
    if not differences:
        return "no known fact changed"
    named = ", ".join(difference.text for difference in differences[:MOST_CHANGES])
    more = len(differences) - MOST_CHANGES
    return f"{named}, and {more} more" if more > 0 else named


def stale_text() -> str:
    return f"no run for {STALE} nights"
