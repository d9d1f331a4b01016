"""The news of a run, from a history. Pure functions of plain values, and one that queries the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from typing import Any

from harness.fleet.answers import Answers, HistoryFailure
from harness.fleet.changes import changed
from harness.fleet.front import changes_text
from harness.fleet.notify_rules import Rules, Silence


class Why(StrEnum):
    """Why a topic is reported."""

    NEW = "new"
    AGAIN = "back"
    REMINDER = "still red"
    UNSILENCED = "still red after its silence"


@dataclass(frozen=True, slots=True)
class Topic:
    """A group of failures of the run, or a finding.

    `key`: that of the group, empty for a finding. `cases`: all red cases of the group in this run. `outcomes`: their
    verdicts. `since`: the night in which it began, for a reminder. `owner`: the owner of the first case.
    """

    why: Why
    key: str
    title: str
    cases: tuple[str, ...]
    message: str
    reproduce: str = ""
    since: date | None = None
    owner: str = ""
    outcomes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """A group in the earlier runs of the lane.

    It has the last night with the group, the night in which its spell began, and the day on which the last run with the
    group ended, when it was reported.
    """

    last: date
    since: date
    reported: date


@dataclass(frozen=True, slots=True)
class Bulletin:
    """The report on one run. `silenced`: groups that a silence covers; `known`: red groups that were reported before.

    `changes`: the differences from the previous run, as text. `before`: the id of that run; empty for a lane's first
    run.
    """

    run_id: str
    lane: str
    night: date
    profile: str
    red: int
    cases: int
    complete: bool
    before: str
    changes: str
    page: str
    topics: tuple[Topic, ...]
    fixed: tuple[str, ...]
    silenced: int = 0
    known: int = 0

    def only(self, topics: Sequence[Topic]) -> Bulletin:
        """Return the bulletin with only these topics."""
        return replace(self, topics=tuple(topics))


def why_reported(
    past: Past | None, night: date, previous: date | None, rules: Rules, silences: Sequence[Silence] = ()
) -> Why | None:
    """Return why a red group is reported, or None if it is known.

    `past`: the group in earlier runs. `previous`: the night of the lane's previous run; None without one. `silences`:
    those that cover the group, and have ended.
    """
    if past is None or previous is None:
        return Why.NEW
    if any(past.reported <= silence.until for silence in silences):
        return Why.UNSILENCED
    if past.last < previous:  # the group was not in the previous run
        return Why.AGAIN if (night - past.last).days > rules.again else None
    if not rules.remind:
        return None
    open_for, open_before = (night - past.since).days, (previous - past.since).days
    return Why.REMINDER if open_for // rules.remind > open_before // rules.remind else None


def grouped(failures: Sequence[HistoryFailure]) -> dict[str, list[HistoryFailure]]:
    """Return the red failures by group, the group with most cases first."""
    by_group: dict[str, list[HistoryFailure]] = {}
    for failure in failures:
        if failure.outcome.is_red:
            by_group.setdefault(failure.group, []).append(failure)
    return dict(sorted(by_group.items(), key=lambda item: (-len(item[1]), item[0])))


def bulletin(answers: Answers, run: Mapping[str, Any], rules: Rules, today: date) -> Bulletin:
    """Return the report on a run, a row of `answers.runs`."""
    news = answers.news(run["run"])
    before = answers.runs[news.previous] if news.previous is not None else None
    groups = grouped(answers.failures(run["run"]))
    past = _past(answers, run, list(groups))
    topics, silenced, still_red = [], 0, 0
    for key, failures in groups.items():
        cases = tuple(sorted({failure.case for failure in failures}))
        covering = [silence for silence in rules.silences if silence.covers(key, cases)]
        why = why_reported(
            past.get(key),
            run["night"],
            before["night"] if before else None,
            rules,
            [silence for silence in covering if silence.until < today],
        )
        if any(silence.until >= today for silence in covering):
            silenced += 1
        elif why is None:
            still_red += 1
        else:
            first = min(failures, key=lambda failure: failure.case)
            since = past[key].since if why in (Why.REMINDER, Why.UNSILENCED) else None
            owner = rules.owner(first.case)
            outcomes = tuple(sorted({failure.outcome.value for failure in failures}))
            topics.append(Topic(why, key, first.title, cases, first.message, first.reproduce, since, owner, outcomes))
    topics += [Topic(Why.NEW, "", kind, (), message) for kind, message in news.findings]
    return Bulletin(
        run_id=run["run_id"],
        lane=run["lane"],
        night=run["night"],
        profile=run["profile"] or "",
        red=run["red"],
        cases=run["cases"],
        complete=bool(run["complete"]),
        before=before["run_id"] if before else "",
        changes=changes_text(changed(before, run)) if before else "",
        page=run["page"] or "",
        topics=tuple(topics),
        fixed=news.fixed,
        silenced=silenced,
        known=still_red,
    )


def _past(answers: Answers, run: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Past]:
    """Return the groups in the earlier runs of the run's lane."""
    nights: dict[str, list[tuple[int, date]]] = {}
    for key, number in answers.red_runs_of_groups(keys, run["lane"]):
        nights.setdefault(key, []).append((number, answers.runs[number]["night"]))
    earlier = [number for number, row in answers.runs.items() if row["lane"] == run["lane"]]
    earlier = earlier[: earlier.index(run["run"])]
    past = {}
    for key, seen in nights.items():
        there = {number: night for number, night in seen if number in earlier}
        if there:
            last = answers.runs[max(there, key=earlier.index)]
            ended = last["begun"] + timedelta(seconds=last["seconds"] or 0.0)
            past[key] = Past(max(there.values()), _spell(earlier, there), ended.date())
    return past


def _spell(earlier: Sequence[int], there: Mapping[int, date]) -> date:
    """Return the night in which the last spell of consecutive runs with the group began."""
    last = max(place for place, number in enumerate(earlier) if number in there)
    while last > 0 and earlier[last - 1] in there:
        last -= 1
    return there[earlier[last]]


def by_channel(whole: Bulletin, rules: Rules) -> Iterator[tuple[str, Bulletin]]:
    """Yield each channel that has something to report, with its bulletin.

    Findings go to every channel of the profile.
    """
    of: dict[str, list[Topic]] = {}
    for topic in whole.topics:
        names = rules.channels_of(topic.cases, whole.profile) if topic.cases else _all(rules, whole.profile)
        for name in names:
            of.setdefault(name, []).append(topic)
    if not whole.complete and not of:
        of = {name: [] for name in _all(rules, whole.profile)}
    for name, topics in of.items():
        yield name, whole.only(topics)


def _all(rules: Rules, profile: str) -> tuple[str, ...]:
    routes = (route for route in rules.routes if route.profile in (None, profile))
    return tuple(dict.fromkeys(name for route in routes for name in route.to))


def without_route(whole: Bulletin, rules: Rules) -> list[Topic]:
    """Return the topics without a route."""
    reported = {id(topic) for _, routed in by_channel(whole, rules) for topic in routed.topics}
    return [topic for topic in whole.topics if id(topic) not in reported]


def idle_silences(rules: Rules, today: date) -> Iterator[str]:
    """Yield a sentence for each silence whose last day is over."""
    for silence in rules.silences:
        if silence.until < today:
            subject = silence.group or silence.cases
            yield f"the silence of {subject!r} ended on {silence.until} ({silence.reason}): remove it"
