"""Reports on one case, one run and one group, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from harness.fleet import front
from harness.fleet import history_text as text
from harness.fleet.answers import EVER, Answers, FailureGroup
from harness.fleet.changes import Suspect, changed, deciding_commands, suspects
from harness.fleet.timeline import story


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
            changes = front.changes_text(changed(runs[before], runs[since]))
        yield f"  {lane}: {text.story_text(verdict, names, changes)}"
    for failure in answers.failures_of_case(number)[: text.MOST_LINES]:
        where = f" on {failure.device}" if failure.device else ""
        yield f"  {failure.night} {failure.outcome}{where} [{failure.group}]: {failure.message}"


def run_lines(answers: Answers, run_id: str, since: str = "") -> Iterator[str]:
    """Yield the differences of a run from the run `since`, by default the previous one of its machine."""
    run = answers.run_by_id(run_id)
    news = answers.news(run["run"], answers.run_by_id(since)["run"] if since else None)
    before = "the first run of its machine" if news.previous is None else answers.runs[news.previous]["run_id"]
    yield from text.news_lines(news, run["run_id"], before)
    if news.previous is not None:
        yield front.changes_text(changed(answers.runs[news.previous], run))


def bisect_lines(answers: Answers, key: str) -> Iterator[str]:
    """Yield the changes that may have caused a group."""
    group = answers.group(key)
    listed = group_suspects(answers, group)
    yield from text.suspects_lines(group, listed, list(deciding_commands(listed, group.case, group.reproduce)))


def group_suspects(answers: Answers, group: FailureGroup) -> list[Suspect]:
    """Return the facts whose change may have caused a group."""
    presence = answers.presence([group.number], EVER).get(group.number, {})
    return suspects(group.onsets, answers.runs, [run for runs in presence.values() for run in runs])
