"""The use of each device during a run: busy and idle times, and the processes that used it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.core.text import format_exit_code
from harness.journal.events import Activity, Device, Event, Executor
from harness.reporting.page import inert
from harness.reporting.page.cases import Axis, PageCase

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
