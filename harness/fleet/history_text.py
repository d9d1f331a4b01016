"""A history as text for a terminal: the front page, and reports on one case, one run and one group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.core.text import format_count
from harness.fleet import front as fronts
from harness.fleet.answers import Answers, FailureGroup, News
from harness.fleet.changes import Suspect, changed, deciding_commands
from harness.fleet.front import Front
from harness.fleet.statistics import wilson
from harness.fleet.suspicion import DeviceSuspicion
from harness.fleet.timeline import Story, story
from harness.reporting.page import inert

#: Maximum lines of one list, and of a list of a single run.
MOST_LINES = 20
MOST_OF_RUN = 200
#: Maximum groups that a text names of those that began together.
MOST_GROUPS = 5
_SPARKS = "▁▂▃▄▅▆▇█"


def front_text(front: Front) -> str:
    """Return the front page: last night, red groups, machines, and other important facts."""
    return "".join(f"{inert.inert_line(line)}\n" if not line.startswith(" ") else f"{line}\n" for line in _lines(front))


def headline(front: Front) -> str:
    """Return for example ``2026-03-02: 12 runs, 3 red; 2 groups of failures on 4 machines``."""
    last = front.nights[-1]
    runs = f"{format_count(last.runs, 'run')}, {last.red_runs} red" if last.red_runs else format_count(last.runs, "run")
    groups = format_count(len(front.groups), "group of failures", "groups of failures")
    return f"{front.night}: {runs}; {groups} in the latest runs of {format_count(len(front.lanes), 'machine')}"


def _lines(front: Front) -> Iterator[str]:
    yield headline(front)
    yield f"red cases of the last {format_count(len(front.nights), 'night')}: {spark([n.red for n in front.nights])}"
    for outbreak in front.outbreaks[:MOST_LINES]:
        yield ""
        groups = format_count(len(outbreak.groups), "group")
        cases = format_count(outbreak.cases, "case")
        yield f"{groups}, {cases}, {fronts.age_text(outbreak.first, front.night)}"
        for text in outbreak.began[:3]:
            yield inert.inert_indented_line(f"  began: {text}")
        if len(outbreak.began) > 3:
            yield f"  and on {len(outbreak.began) - 3} more"
        for group in outbreak.groups[:MOST_GROUPS]:
            yield from group_lines(group)
        yield from _more(len(outbreak.groups), "group", "groups", MOST_GROUPS)
    yield from _more(len(front.outbreaks), "begin", "begins")
    yield from _listed("finding", [f"{lane}: {kind}: {message}" for lane, kind, message in front.findings])
    yield ""
    yield "machines:"
    for lane in front.lanes[:MOST_LINES]:
        run = lane.run
        news = f", {lane.new} new, {lane.fixed} fixed" if lane.new or lane.fixed else ""
        facts = f"driver {run['driver']}, torch {run['torch']}"
        yield inert.inert_indented_line(
            f"  {lane.lane}: {run['red']} red{news} of {run['cases']} ({run['night']}, {facts}) {spark(lane.trend)}"
        )
    yield from _more(len(front.lanes), "machine", "machines")
    for lane in front.stale[:MOST_LINES]:
        yield inert.inert_indented_line(f"  {lane.lane}: {fronts.stale_text()}, the last in {lane.run['night']}")
    for device in front.suspicious:
        yield inert.inert_indented_line(f"suspicious device: {suspicion_text(device)}")
    yield from _listed("flaky", [flaky_text(*row) for row in front.flaky])
    yield from _listed(
        "slower",
        [
            f"{case.case} on {case.lane}: {case.slower.before:.2f} s, now {case.slower.after:.2f} s"
            for case in front.slow
        ],
    )
    yield from _listed("not run lately", [f"{case}: last in {night} ({why})" for case, night, why in front.not_run])
    for reason, number in front.never_run[:MOST_LINES]:
        yield inert.inert_indented_line(f"never run: {format_count(number, 'case')}: {reason or 'no run has a result'}")
    yield from _listed(
        "waived, and passes", [f"{failure.case} on {failure.lane}: {failure.message}" for failure in front.healed]
    )


def group_lines(group: FailureGroup) -> Iterator[str]:
    """Yield the lines about a red group."""
    yield inert.inert_indented_line(f"  [{group.key}] {group.title}")
    since = f", first seen {group.first}, drivers {', '.join(group.drivers)}"
    yield inert.inert_indented_line(f"    {fronts.spread_text(group)}{since}")
    yield inert.inert_indented_line(f"    example: {group.case}: {group.message}")
    if group.reproduce:
        yield inert.inert_indented_line(f"    {group.reproduce}")


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


def story_text(story: Story, of_run: dict[int, str], changes: str = "") -> str:
    """Return a text about the verdicts over time on a case. `of_run`: names of runs."""
    low, high = story.interval
    parts = [story.kind.value]
    if story.since is not None and story.kind.value != "green":
        parts.append(f"since {of_run[story.since]}")
    text = " ".join(parts)
    if story.bad:
        text += f"; bad in {story.bad} of {story.ran} runs ({100 * low:.1f} to {100 * high:.1f} %)"
    if story.device:
        text += f"; only on {story.device}"
    if story.slower is not None:
        text += f"; slower: {story.slower.before:.2f} s, now {story.slower.after:.2f} s"
    return f"{text}; {changes}" if changes else text


def suspects_lines(group: FailureGroup, suspects: Sequence[Suspect], commands: Sequence[str]) -> Iterator[str]:
    """Yield the facts whose change may have caused a group, and the commands that decide it."""
    yield inert.inert_indented_line(f"[{group.key}] {group.title}")
    if not suspects:
        yield "no known fact changed where it began, and none separates the runs with it from those without"
    for suspect in suspects:
        moved = (
            f"changed where it began on {suspect.lanes} of {format_count(suspect.of, 'machine')}"
            if suspect.of
            else "never changed on a machine with it"
        )
        sure = "all runs agree" if suspect.separates else "other runs contradict it, or it is not alone"
        yield inert.inert_indented_line(
            f"  {suspect.name}: {suspect.good or 'none'} is good, {suspect.bad or 'none'} is bad ({moved}; {sure})"
        )
    yield "decide it with:"
    for command in commands:
        yield f"  {inert.inert_indented_line(command)}"


def news_lines(news: News, name: str, before: str) -> Iterator[str]:
    """Yield the differences of a run from the previous one."""
    yield inert.inert_indented_line(
        f"{name}: {len(news.new)} newly red, {len(news.fixed)} fixed, {len(news.gated)} newly gated since {before}"
    )
    yield from _listed(
        "red", [f"{failure.outcome} {failure.case}: {failure.message}" for failure in news.new], MOST_OF_RUN
    )
    yield from _listed("fixed", news.fixed, MOST_OF_RUN)
    yield from _listed("gated", news.gated, MOST_OF_RUN)
    yield from _listed("finding", [f"{kind}: {message}" for kind, message in news.findings], MOST_OF_RUN)


def case_lines(answers: Answers, case: str) -> Iterator[str]:
    """Yield the verdict over time on a case, per lane."""
    number = answers.case_number(case)
    runs = answers.runs
    names = {run: f"{row['run_id']} ({row['night']})" for run, row in runs.items()}
    yield case
    for lane, observations in answers.observations([number])[number].items():
        verdict = story(observations)
        before, since = verdict.before, verdict.since
        changes = ""
        if verdict.kind.value != "green" and before is not None and since is not None:
            changes = fronts.changes_text(changed(runs[before], runs[since]))
        yield f"  {lane}: {story_text(verdict, names, changes)}"
    for failure in answers.failures_of_case(case)[:MOST_LINES]:
        where = f" on {failure.device}" if failure.device else ""
        yield f"  {failure.night} {failure.outcome}{where} [{failure.group}]: {failure.message}"


def run_lines(answers: Answers, run_id: str, since: str = "") -> Iterator[str]:
    """Yield the differences of a run from the run `since`, by default the previous one of its machine."""
    run = answers.run_by_id(run_id)
    news = answers.news(run["run"], answers.run_by_id(since)["run"] if since else None)
    before = "the first run of its machine" if news.previous is None else answers.runs[news.previous]["run_id"]
    yield from news_lines(news, run["run_id"], before)
    if news.previous is not None:
        yield fronts.changes_text(changed(answers.runs[news.previous], run))


def bisect_lines(answers: Answers, key: str) -> Iterator[str]:
    """Yield the changes that may have caused a group."""
    group = answers.group(key)
    listed = answers.suspects(group)
    yield from suspects_lines(group, listed, list(deciding_commands(listed, group.case, group.reproduce)))


def spark(values: Sequence[int]) -> str:
    """Return the values as a row of bars."""
    top = max(values, default=0)
    return (
        "".join(_SPARKS[0 if not value else 1 + (value * 6) // top] for value in values)
        if top
        else _SPARKS[0] * len(values)
    )


def _listed(title: str, texts: Sequence[str], most: int = MOST_LINES) -> Iterator[str]:
    for text in texts[:most]:
        yield inert.inert_indented_line(f"{title}: {text}")
    yield from _more(len(texts), f"{title} entry", f"{title} entries", most)


def _more(number: int, noun: str, plural: str, most: int = MOST_LINES) -> Iterator[str]:
    if number > most:
        yield f"and {format_count(number - most, f'more {noun}', f'more {plural}')}"
