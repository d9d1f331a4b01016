"""Plain values for everything that the page of a run shows. A pure function of the journal and environment.json."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from harness.backends.table import labels
from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import format_count
from harness.journal import environment
from harness.journal.events import Bisected, Event, Executor, Finding, Start, Stopped, Waiver
from harness.journal.ledger import Ledger, ListResult
from harness.journal.reader import JournalContents
from harness.reporting.junit_case import MOST_TEXT
from harness.reporting.page import cases as case_views
from harness.reporting.page import inert, tables
from harness.reporting.page.cases import Axis, PageCase
from harness.reporting.repetitions import Repeated, leak_search_cost, repetitions, unproven_leaks

#: Maximum characters of all texts of a page together.
MOST_OF_TEXTS = 8_000_000
#: Maximum number of red and flaky cases shown in full above the table. The table has all of them.
IN_FULL = 50


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict on the run: ``green``, ``red`` or ``empty``, one word and one sentence."""

    tone: str
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class NotRunGroup:
    """Cases that have no verdict of their own for the same reason."""

    message: str
    cases: tuple[PageCase, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a run. `bad`: red and flaky cases, the most severe first, without those in `not_run`.

    `grew`: one line per process that grew and is not shown to leak.
    """

    title: str
    headline: Headline
    counts: tuple[tuple[Outcome, int], ...]
    facts: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    findings: tuple[Finding, ...]
    bisected: tuple[Bisected, ...]
    cases: tuple[PageCase, ...]
    bad: tuple[PageCase, ...]
    not_run: tuple[NotRunGroup, ...]
    fail_on_flaky: bool
    begun: float
    span: float
    parts: tuple[float, ...]
    lives: tuple[tables.Life, ...]
    uses: tuple[tables.Use, ...]
    marks: tuple[tables.TimelineMark, ...]
    durations: tables.DurationTable
    repeated: tuple[Repeated, ...]
    grew: tuple[str, ...]
    figures: tuple[tables.FigureRow, ...]
    gates: tuple[tables.GateRow, ...]
    waivers: tuple[tables.WaiverRow, ...]
    lists: tuple[ListResult, ...]
    environment: tuple[tables.FactTable, ...]
    text_limit: int

    @property
    def red(self) -> int:
        """The number of red cases."""
        return sum(case.outcome.is_red for case in self.cases) + (
            sum(case.outcome is Outcome.FLAKY for case in self.cases) if self.fail_on_flaky else 0
        )


def page_of(
    contents: JournalContents,
    facts: Mapping[str, Any] | None,
    problem: str = "",
    ledger: Ledger | None = None,
    has_files: Callable[[str], bool] = lambda _: True,
) -> Page:
    """Return the page of a run, from its journal and environment file.

    `problem`: why there is no environment file. `ledger`: the ledger of the journal, if the caller has it. `has_files`:
    returns whether the run directory has this folder of kept files.
    """
    events = contents.events
    if ledger is None:
        ledger = Ledger.from_journal(contents)
    axis = Axis.from_events(events)
    lives = tables.lives(events, axis)
    ends = {end.executor: end.t for end in events if isinstance(end, Executor) and end.state == "ended"}
    starts: dict[str, list[Start]] = {}
    for event in events:
        if isinstance(event, Start):
            starts.setdefault(event.case, []).append(event)
    limit = case_views.fitting_limit(case_views.text_costs(ledger.verdicts, MOST_TEXT), MOST_OF_TEXTS, MOST_TEXT)
    cases = case_views.page_cases(ledger.verdicts, starts, ends, axis, limit, functools.cache(has_files))
    shown = [case for case in cases if case.outcome.is_red or case.outcome is Outcome.FLAKY]
    bad = [case for case in shown if case.outcome is not Outcome.NOT_RUN]
    marks = tables.marks(events, axis)
    names = _device_names(ledger, facts or {})
    repeated = sorted(repetitions(ledger), key=lambda entry: not entry.grows)
    return Page(
        title=inert.inert_line(ledger.run.run_id if ledger.run is not None else "a run without a beginning", 200),
        headline=_headline(ledger, events),
        counts=tuple(ledger.counts.items()),
        facts=tuple(_headline_facts(ledger, facts or {})),
        doubts=tuple(_doubts(contents, facts, problem, ledger)),
        findings=ledger.findings,
        bisected=ledger.bisected,
        cases=cases,
        bad=tuple(sorted(bad, key=lambda case: -case.outcome.severity)),
        not_run=_groups(case for case in shown if case.outcome is Outcome.NOT_RUN),
        fail_on_flaky=ledger.fail_on_flaky,
        begun=axis.begins[0] if axis.begins else 0.0,
        span=axis.span,
        parts=axis.offsets,
        lives=lives,
        uses=tables.uses(cases, lives, marks, axis, names),
        marks=marks,
        durations=tables.duration_table(cases),
        repeated=tuple(repeated),
        grew=tuple(inert.inert_line(text, 600) for text in unproven_leaks(ledger.searches)),
        figures=tables.figure_rows(ledger.verdicts, cases),
        gates=tables.gate_rows(ledger.verdicts, cases),
        waivers=tables.waiver_rows([waiver for waiver in events if isinstance(waiver, Waiver)], cases, _day(ledger)),
        lists=ledger.lists,
        environment=tuple(tables.environment_rows(ledger.run, facts)),
        text_limit=limit,
    )


def _headline(ledger: Ledger, events: Iterable[Event]) -> Headline:
    status = ledger.run_exit_status()
    total = format_count(len(ledger.verdicts), "case")
    stopped = next((event for event in reversed(list(events)) if isinstance(event, Stopped)), None)
    red = len(ledger.red)
    parts = [f"{red} of {total} {'is' if red == 1 else 'are'} red" if red else f"{total}, none of them red"]
    parts += [format_count(len(ledger.findings), "finding")] if ledger.findings else []
    parts += (
        [f"stopped by {inert.inert_line(stopped.by, 50)}"] if stopped is not None and ledger.end is not None else []
    )
    if ledger.end is None:
        return Headline("red", "Not finished", f"The run was cut off, so it counts as red: {'; '.join(parts)}.")
    if status == EXIT_OK:
        return Headline("green", "Green", f"{'; '.join(parts)}.")
    if status == EXIT_NOTHING_RAN:
        return Headline("empty", "Nothing ran", f"No case has a verdict: {'; '.join(parts)}.")
    word = {EXIT_INTERRUPTED: "Interrupted", EXIT_INTERNAL: "Internal error"}.get(status, "Red")
    more = "" if ledger.red or ledger.findings else " Pytest ended with this status for another reason: see its output."
    return Headline("red", word, f"{'; '.join(parts)}; exit status {status}.{more}")


def _headline_facts(ledger: Ledger, facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the facts below the verdict, as pairs of name and text."""
    run, end = ledger.run, ledger.end
    if run is not None:
        yield "Started", f"{datetime.fromtimestamp(run.t, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield "Duration", "not known" if end is None else duration_text(end.duration)
    if run is not None:
        yield "Host", inert.inert_line(run.host, 200)
        rows = {str(row.get("uuid")): str(row.get("name")) for row in environment.devices_of(facts)}
        named = Counter(rows.get(uuid, uuid) for uuid in run.devices)
        texts = [f"{times} x {name}" if times > 1 else name for name, times in named.items()]
        label = labels(run.devices)
        yield (
            "Devices",
            inert.inert_line(", ".join(texts) + (f" ({label})" if label and label not in texts else ""), 300),
        )
    versions = facts.get("versions")
    if isinstance(versions, dict) and versions.get("torch"):
        yield "torch", inert.inert_line(str(versions["torch"]), 100)
    if facts.get("driver"):
        yield "Driver", inert.inert_line(str(facts["driver"]), 100)
    if run is not None:
        yield from (
            (name, inert.inert_line(text, 200))
            for name, text in (("Profile", run.profile), ("Shard", run.shard))
            if text
        )
        yield "Seed", str(run.seed)
    cost = ledger.cost
    yield (
        "Isolation",
        f"{format_count(cost.executors, 'executor')}, {format_count(cost.restarts, 'restart')}, "
        f"{format_count(cost.retries, 'retry', 'retries')}{leak_search_cost(ledger.searches)}",
    )


def duration_text(seconds: float) -> str:
    """Return a duration in seconds as text: ``12 ms``, ``3.4 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if not seconds:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _doubts(contents: JournalContents, facts: Mapping[str, Any] | None, problem: str, ledger: Ledger) -> Iterable[str]:
    """Yield the problems of the page's source files, one text per problem."""
    for damaged in contents.damaged[:20]:
        yield inert.inert_line(f"Line {damaged.number} of the journal cannot be read and was ignored: {damaged.reason}")
    if len(contents.damaged) > 20:
        yield f"{len(contents.damaged) - 20} more lines of the journal cannot be read."
    for unknown in contents.unknown[:20]:
        line = f"Line {unknown.number} of the journal has the unknown kind {json.dumps(unknown.kind)}"
        yield inert.inert_line(f"{line} and was ignored: use a newer harness to read it")
    if doubled := ledger.read_problems.doubled_lines:
        yield f"{format_count(doubled, 'duplicate line')} in the journal, counted once."
    if problem or facts is None:
        yield f"The environment is not known: {inert.inert_line(problem) or 'there is no environment.json'}."
    for change in ledger.forced:
        yield inert.inert_line(f"The run was resumed by force, though this had changed: {change}")


def _groups(cases: Iterable[PageCase]) -> tuple[NotRunGroup, ...]:
    by_message: dict[str, list[PageCase]] = {}
    for case in cases:
        by_message.setdefault(case.message, []).append(case)
    return tuple(NotRunGroup(message, tuple(listed)) for message, listed in by_message.items())


def _device_names(ledger: Ledger, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the devices of the run, with their names and numbers if environment.json has them."""
    names = dict.fromkeys(ledger.run.devices if ledger.run is not None else (), "")
    for row in environment.devices_of(facts):
        uuid, name, index = str(row.get("uuid")), str(row.get("name") or ""), row.get("index")
        if uuid in names:
            number = f"{index}: " if isinstance(index, int) else ""
            names[uuid] = inert.inert_line(f"{number}{name}", 200)
    return names


def _day(ledger: Ledger) -> date:
    """Return the day of the run in UTC, as for waivers."""
    return datetime.fromtimestamp(ledger.run.t if ledger.run is not None else 0.0, UTC).date()
