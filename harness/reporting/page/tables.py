"""The tables of a page (gates, waivers, durations, environment), and its timeline. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from harness.core import figures
from harness.core.outcome import Outcome
from harness.core.text import format_bytes, format_exit_code
from harness.gating.lint import WARNING
from harness.gating.waivers import is_link
from harness.journal.events import Activity, Device, Event, Executor, RunStarted, Waiver
from harness.journal.verdicts import Verdict
from harness.reporting.page import inert
from harness.reporting.page.cases import Axis, PageCase

#: Number of slowest cases in the list.
SLOWEST = 20
#: Bin edges of the histogram of durations, in seconds.
EDGES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, float("inf"))


@dataclass(frozen=True, slots=True)
class GateRow:
    """Gated cases that lack the same capability. `reasons`: the wanted and the found value, and the cases."""

    capability: str
    reasons: tuple[tuple[str, str, tuple[PageCase, ...]], ...]

    @property
    def count(self) -> int:
        return sum(len(cases) for _, _, cases in self.reasons)


def gate_rows(verdicts: Sequence[Verdict], cases: Sequence[PageCase]) -> tuple[GateRow, ...]:
    """Return the gated cases by missing capability, the largest group first."""
    groups: dict[str, dict[tuple[str, str], list[PageCase]]] = {}
    for verdict, case in zip(verdicts, cases, strict=True):
        if verdict.outcome is not Outcome.GATED:
            continue
        gate = verdict.decided.gate if verdict.decided is not None else None
        name = "not recorded" if gate is None else inert.inert_line(gate.capability, 200)
        wanted, actual = (
            ("", case.message)
            if gate is None
            else (inert.inert_line(gate.wanted, 300), inert.inert_line(gate.found, 300))
        )
        groups.setdefault(name, {}).setdefault((wanted, actual), []).append(case)
    found_gates = [
        GateRow(name, tuple((*reason, tuple(listed)) for reason, listed in reasons.items()))
        for name, reasons in groups.items()
    ]
    return tuple(sorted(found_gates, key=lambda gate: -gate.count))


@dataclass(frozen=True, slots=True)
class WaiverRow:
    """One waiver, or one mark or rule that waives cases without a waiver file.

    `left`: days left on the day of the run; None without a last day. `cases`: the cases that it had an effect on.
    """

    pattern: str
    expect: str
    reason: str
    link: str
    owner: str
    source: str
    expires: str
    left: int | None
    cases: tuple[PageCase, ...]

    @property
    def tone(self) -> str:
        """The urgency: ``over``, ``soon`` or empty."""
        if self.left is None:
            return ""
        return "over" if self.left < 0 else "soon" if timedelta(days=self.left) <= WARNING else ""

    @property
    def days(self) -> str:
        """The days left, as text."""
        if self.left is None:
            return "no last day"
        if self.left < 0:
            return f"expired {-self.left} {'day' if self.left == -1 else 'days'} before the run"
        return "last day" if self.left == 0 else "1 day left" if self.left == 1 else f"{self.left} days left"


def waiver_rows(lines: Iterable[Waiver], cases: Iterable[PageCase], today: date) -> tuple[WaiverRow, ...]:
    """Return every waiver of the run, the first to expire on top.

    Marks and rules that waived cases without a waiver file follow.
    """
    by_source: dict[str, list[PageCase]] = {}
    unsourced = []
    for case in cases:
        if case.ruled:
            by_source.setdefault(case.ruled, []).append(case)
        elif case.outcome is Outcome.WAIVED:
            unsourced.append(case)
    unique = {(line.source, line.case): line for line in lines}.values()
    rows = [_row(waiver, by_source.get(waiver.source, ()), today) for waiver in unique]
    rows.sort(key=lambda row: row.expires)
    sources = {waiver.source for waiver in unique}
    for source, listed in by_source.items():
        waived = [case for case in listed if case.outcome is Outcome.WAIVED]
        if waived and source not in sources:
            rows.append(_unlisted(inert.inert_line(source, 300), waived))
    return (*rows, *([_unlisted("xfail marks", unsourced)] if unsourced else []))


def _row(waiver: Waiver, cases: Sequence[PageCase], today: date) -> WaiverRow:
    try:
        left = (date.fromisoformat(waiver.expires) - today).days
    except ValueError:
        left = None
    link = waiver.link if waiver.link.isascii() and waiver.link.isprintable() and is_link(waiver.link) else ""
    return WaiverRow(
        pattern=inert.inert_line(waiver.case, 500),
        expect=" or ".join(waiver.expect),
        reason=inert.inert_line(waiver.reason),
        link=link,
        owner=inert.inert_line(waiver.owner, 200),
        source=inert.inert_line(waiver.source, 300),
        expires=inert.inert_line(waiver.expires, 20),
        left=left,
        cases=tuple(cases),
    )


def _unlisted(source: str, cases: Sequence[PageCase]) -> WaiverRow:
    return WaiverRow("", "", "in a mark of the case", "", "", source, "", None, tuple(cases))


@dataclass(frozen=True, slots=True)
class DurationTable:
    """Durations of the cases that ran, in seconds. `bins`: lower edge, upper edge, number of cases."""

    total: float
    median: float
    count: int
    slowest: tuple[PageCase, ...]
    bins: tuple[tuple[float, float, int], ...]
    suites: tuple[tuple[str, int, float], ...]


def duration_table(cases: Sequence[PageCase]) -> DurationTable:
    """Return the durations of all cases that ran."""
    ran = [case for case in cases if case.outcome.ran and case.attempts]
    times = sorted(case.duration for case in ran)
    bins = [(low, high, sum(low <= seconds < high for seconds in times)) for low, high in pairwise(EDGES)]
    filled = [place for place, (_, _, number) in enumerate(bins) if number]
    by_suite: dict[str, list[float]] = {}
    for case in ran:
        by_suite.setdefault(case.suite, []).append(case.duration)
    return DurationTable(
        total=sum(times),
        median=median(times) if times else 0.0,
        count=len(ran),
        slowest=tuple(sorted(ran, key=lambda case: -case.duration)[:SLOWEST]),
        bins=tuple(bins[filled[0] : filled[-1] + 1]) if filled else (),
        suites=tuple(
            sorted(((n, len(durations), sum(durations)) for n, durations in by_suite.items()), key=lambda row: -row[2])
        ),
    )


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure of speed that a case recorded. `reach`: its value as a fraction of its floor; None without a floor."""

    name: str
    value: str
    spread: str
    floor: str
    reach: float | None
    case: PageCase


def figure_rows(verdicts: Sequence[Verdict], cases: Sequence[PageCase]) -> tuple[FigureRow, ...]:
    """Return the figures of the deciding attempts, in the order of the cases."""
    rows = []
    for verdict, case in zip(verdicts, cases, strict=True):
        recorded = dict(verdict.decided.properties) if verdict.decided is not None else {}
        for key, text in recorded.items():
            value = figures.read_figure(text)
            if not key.startswith(figures.PREFIX) or value is None:
                continue
            name, plain = key.removeprefix(figures.PREFIX), key.removesuffix(".again")
            floor = recorded.get(f"{plain}.floor", "")
            reach = figures.reach_of_floor(plain.removeprefix(figures.PREFIX), value, floor) if floor else None
            rows.append(
                FigureRow(
                    name=inert.inert_line(name, 200),
                    value=text,
                    spread=inert.inert_line(recorded.get(f"{key}.quartiles", ""), 200),
                    floor=inert.inert_line(floor, 200),
                    reach=reach,
                    case=case,
                )
            )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class FactTable:
    """Facts of the environment under a title, by name."""

    title: str
    rows: tuple[tuple[str, str], ...]


_RUN = ("run_id", "host", "argv", "rootdir", "seed", "isolation", "profile", "hardware", "shard", "part", "devices")
#: Suffixes of names of facts that are numbers of bytes.
_BYTES = frozenset({"memory", "total_memory", "free_memory"})
_OWN = {"versions": "Versions", "environment": "Variables", "devices": "Devices", "hidden_devices": "Hidden devices"}


def environment_rows(run: RunStarted | None, facts: Mapping[str, Any] | None) -> Iterable[FactTable]:
    """Yield the facts of the ``run`` line and of environment.json, in groups. Every fact of the file is shown."""
    if run is not None:
        ran = "" if run.imported is None else run.imported.text
        yield FactTable("Run", tuple(_flat({**{name: getattr(run, name) for name in _RUN}, "ran": ran})))
    if facts is not None:
        yield FactTable(
            "Machine and command", tuple(_flat({n: v for n, v in facts.items() if n not in (*_OWN, "schema")}))
        )
        for name, title in _OWN.items():
            if rows := tuple(_flat(facts.get(name))):
                yield FactTable(title, rows)
    if run is not None:
        if run.identity:
            yield FactTable("Identity", tuple(_flat(run.identity)))
        yield FactTable("Settings", tuple(_flat({n: v for n, v in run.settings.items() if v not in (None, "")})))


def _flat(value: object, name: str = "", depth: int = 0) -> Iterable[tuple[str, str]]:
    """Yield the leaves of a JSON value as pairs of name and text. A list of plain values is one leaf."""
    if isinstance(value, Mapping) and depth < 6:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list | tuple) and depth < 6 and any(isinstance(member, Mapping | list) for member in value):
        for number, item in enumerate(value):
            yield from _flat(item, f"{name}[{number}]" if name else str(number), depth + 1)
    elif isinstance(value, int) and name.rpartition(".")[2] in _BYTES:
        yield inert.inert_line(name, 200), format_bytes(value)
    elif value not in (None, "", [], (), {}):
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield inert.inert_line(name, 200), inert.inert_line(text)


#: The label of a worker that runs cases again.
_SEARCHES = ("searching for leaks", "confirming a leak")
#: The device of cases without a device.
NONE = "no device"


@dataclass(frozen=True, slots=True)
class Life:
    """An executor from its start to its end, on the axis of the run. `restart`: it is not the first one of its worker.

    `search`: it ran cases again to find a leak.
    """

    executor: str
    worker: str
    devices: tuple[str, ...]
    start: float
    end: float
    restart: bool
    text: str
    search: bool = False


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """An event of a device."""

    device: str
    at: float
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one device, in seconds. `gap`: the longest time between two cases. `gap_at`: the start of the gap."""

    device: str
    name: str
    workers: tuple[str, ...]
    attempts: int
    busy: float
    share: float
    gap: float
    gap_at: float
    executors: int
    restarts: int
    health: tuple[TimelineMark, ...]


def lives(events: Iterable[Event], axis: Axis) -> tuple[Life, ...]:
    """Return every executor, ordered by start."""
    started: dict[str, Executor] = {}
    ended: dict[str, Executor] = {}
    searching: dict[str, bool] = {}
    searches: set[str] = set()
    for event in events:
        if isinstance(event, Activity):
            searching[event.worker] = event.what.startswith(_SEARCHES)
        elif isinstance(event, Executor):
            (started if event.state == "started" else ended).setdefault(event.executor, event)
            if event.state == "started" and searching.get(event.worker):
                searches.add(event.executor)
    seen: set[str] = set()
    executors = []
    for name, first in started.items():
        last = ended.get(name)
        start = max(0.0, axis.of(first.t) - (first.startup or 0.0))
        executors.append(
            Life(
                executor=name,
                worker=first.worker,
                devices=first.devices,
                start=start,
                end=axis.span if last is None else max(start, axis.of(last.t)),
                restart=first.worker in seen,
                text=_end_text(last),
                search=name in searches,
            )
        )
        seen.add(first.worker)
    return tuple(executors)


def _end_text(last: Executor | None) -> str:
    if last is None:
        return "its end is not in the journal"
    how = "ended" if last.exit_status is None else f"ended with {format_exit_code(last.exit_status)}"
    return inert.inert_line(f"{how}: {last.reason}" if last.reason else how, 300)


def marks(events: Iterable[Event], axis: Axis) -> tuple[TimelineMark, ...]:
    """Return each time that a device was found sick or was drained."""
    return tuple(
        TimelineMark(event.device, axis.of(event.t), event.state, inert.inert_line(event.message or event.moment))
        for event in events
        if isinstance(event, Device) and event.state != "healthy"
    )


def uses(
    cases: Iterable[PageCase],
    executors: Sequence[Life],
    events: Sequence[TimelineMark],
    axis: Axis,
    names: Mapping[str, str],
) -> tuple[Use, ...]:
    """Return the use of each device, in the order of `names`, then of the first case."""
    spans: dict[str, list[tuple[float, float]]] = {device: [] for device in names}
    workers: dict[str, dict[str, None]] = {}
    for case in cases:
        for attempt in case.attempts:
            for device in attempt.devices or (NONE,):
                spans.setdefault(device, []).append((attempt.start, attempt.start + attempt.duration))
                workers.setdefault(device, {})[attempt.worker] = None
    result = []
    for device, intervals in spans.items():
        merged = _union(intervals)
        busy = sum(end - start for start, end in merged)
        gap, gap_at = max(
            ((later[0] - earlier[1], earlier[1]) for earlier, later in pairwise(merged)),
            default=(0.0, 0.0),
        )
        own = [life for life in executors if device in (life.devices or (NONE,))]
        result.append(
            Use(
                device=device,
                name=names.get(device, ""),
                workers=tuple(workers.get(device, {})),
                attempts=len(intervals),
                busy=busy,
                share=min(1.0, busy / axis.span) if axis.span else 0.0,
                gap=gap,
                gap_at=gap_at,
                executors=len(own),
                restarts=sum(life.restart for life in own),
                health=tuple(mark for mark in events if mark.device == device),
            )
        )
    return tuple(result)


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
