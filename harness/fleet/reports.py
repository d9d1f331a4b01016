"""Reports of a history for a terminal: the last night, one case, one run, and what may have caused a group.

The texts of this module are also those of the pages and messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from harness.core.text import format_count
from harness.fleet.answers import STALE, Answers, DeviceSuspicion, FailureGroup
from harness.fleet.statistics import wilson
from harness.fleet.texts import render_text
from harness.fleet.timeline import Story, VerdictTrend, changes_text, deciding_commands, story

_SPARKS = "▁▂▃▄▅▆▇█"


def front_text(answers: Answers) -> str:
    """Return the report on the last night: red groups, machines, and other important facts."""
    lists = {
        "flaky": [flaky_text(*row) for row in answers.flaky_cases],
        "slower": [f"{each.case} on {each.lane}: {each.slower.text}" for each in answers.slow_cases],
        "not run lately": [f"{case}: last in {night} ({why})" for case, night, why in answers.not_run],
        "never run": [
            f"{format_count(number, 'case')}: {why or 'no run has a result'}" for why, number in answers.never_run
        ],
        "waived, and passes": [f"{each.case} on {each.lane}: {each.message}" for each in answers.healed_waivers],
    }
    return render_text("front.txt", answers=answers, lists=lists, **words(answers))


def words(answers: Answers) -> dict[str, Any]:
    """Return what the front page and its text have in common: functions for texts, by name."""
    return {
        "headline": headline(answers),
        "age": lambda first: age_text(first, answers.last_night),
        "spread": spread_text,
        "began": lambda group, only_open=False: began_texts(group, answers.runs, only_open=only_open),
        "suspicion_text": suspicion_text,
        "flaky_text": flaky_text,
        "spark": spark,
        "stale": f"no run for {STALE} nights",
    }


def case_text(answers: Answers, case: str) -> str:
    """Return the verdict over time on a case, per lane."""
    number = answers.case_number(case)
    lanes = answers.observations([number])[number]
    stories = [(lane, story_text(story(seen), answers.runs)) for lane, seen in lanes.items()]
    return render_text("case.txt", case=case, stories=stories, failures=answers.failures_of_case(case))


def run_text(answers: Answers, run_id: str, since: str = "") -> str:
    """Return the differences of a run from the run `since`, by default the previous one of its machine."""
    run = answers.run_by_id(run_id)
    news = answers.news(run["run"], answers.run_by_id(since)["run"] if since else None)
    before = None if news.previous is None else answers.runs[news.previous]
    changes = "" if before is None else changes_text(before, run)
    return render_text("run.txt", run=run, news=news, before=before, changes=changes)


def bisect_text(answers: Answers, key: str) -> str:
    """Return the facts whose change may have caused a group, and the commands that decide it."""
    group = answers.group(key)
    suspects = answers.suspects(group)
    commands = list(deciding_commands(suspects, group.case, group.reproduce))
    return render_text("bisect.txt", group=group, suspects=suspects, commands=commands)


# ---- texts ----


def headline(answers: Answers) -> str:
    """Return for example ``2026-03-02: 12 runs, 3 red; 2 groups of failures on 4 machines``."""
    last = answers.nights[-1]
    runs = f"{format_count(last.runs, 'run')}, {last.red_runs} red" if last.red_runs else format_count(last.runs, "run")
    groups = format_count(len(answers.open_groups), "group of failures", "groups of failures")
    machines = format_count(len(answers.present), "machine")
    return f"{answers.last_night}: {runs}; {groups} in the latest runs of {machines}"


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
        if onset.before is not None:
            texts.append(f"{where}; {changes_text(runs[onset.before], run)}")
        elif run["night"] > group.first and len(group.lanes) == 1:
            texts.append(f"{onset.lane}: before {run['night']}")
        else:
            texts.append(f"{where}, the first run of its cases there")
        if onset.until is not None:
            texts[-1] += f"; gone since {runs[onset.until]['run_id']} ({runs[onset.until]['night']})"
    return texts


def suspicion_text(suspicion: DeviceSuspicion) -> str:
    """Return why a device is suspicious."""
    events = f"; {format_count(suspicion.events, 'health event')}" if suspicion.events else ""
    xids = f", Xid {', '.join(map(str, suspicion.xids))}" if suspicion.xids else ""
    return (
        f"{suspicion.device} ({suspicion.name}, {suspicion.host}): "
        f"{suspicion.bad} bad results in {format_count(suspicion.runs, 'run')}, "
        f"{suspicion.expected:.1f} expected of its siblings' rate (chance {suspicion.chance:.1g}){events}{xids}"
    )


def flaky_text(case: str, bad: int, ran: int, devices: int) -> str:
    """Return the rate of a flaky case with its interval."""
    low, high = wilson(bad, ran)
    where = "on one device" if devices == 1 else f"on {devices} devices"
    return f"{case}: {bad} of {ran} bad ({100 * low:.1f} to {100 * high:.1f} %), {where}"


def story_text(verdict: Story, runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a text about the verdicts over time on a case, with what changed at the begin of its present state."""
    text, changes = verdict.kind.value, ""
    if verdict.since is not None and verdict.kind is not VerdictTrend.GREEN:
        since = runs[verdict.since]
        text += f" since {since['run_id']} ({since['night']})"
        changes = "" if verdict.before is None else f"; {changes_text(runs[verdict.before], since)}"
    if verdict.bad:
        low, high = verdict.interval
        text += f"; bad in {verdict.bad} of {verdict.ran} runs ({100 * low:.1f} to {100 * high:.1f} %)"
    if verdict.device:
        text += f"; only on {verdict.device}"
    if verdict.slower is not None:
        text += f"; slower: {verdict.slower.text}"
    return text + changes


def spark(values: Sequence[int]) -> str:
    """Return the values as a row of bars."""
    top = max([*values, 1])
    return "".join(_SPARKS[0 if not value else 1 + (value * 6) // top] for value in values)
