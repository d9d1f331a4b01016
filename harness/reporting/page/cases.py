"""The cases of a run as a page shows them: attempts in order, texts cut to a limit. Plain values and pure functions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harness.core.outcome import Outcome
from harness.core.text import truncate_middle
from harness.journal.events import End, Event, Executor, Finish, RunStarted, Start
from harness.journal.verdicts import Verdict, executor_end
from harness.reporting.junit_case import GREEN_SHARE
from harness.reporting.page import inert


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis. `begins`: starts of the parts, in seconds since 1970. `offsets`: their positions.

    `span`: the end in seconds.
    """

    begins: tuple[float, ...]
    offsets: tuple[float, ...]
    span: float

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Return the axis from the first line of the run to its last event."""
        begins: list[float] = []
        lasts: list[float] = []
        for event in events:
            if isinstance(event, RunStarted):
                begins.append(max([event.t, *begins[-1:], *lasts[-1:]]))
                lasts.append(begins[-1])
            elif isinstance(event, Start | Finish | Executor | End) and begins:
                lasts[-1] = max(lasts[-1], event.t)
        offsets, span = [], 0.0
        for begin, last in zip(begins, lasts, strict=True):
            offsets.append(span)
            span += last - begin
        return cls(tuple(begins), tuple(offsets), span)

    def of(self, moment: float) -> float:
        """Return the position of a moment, clamped to the start and the end of the run."""
        part = bisect_right(self.begins, moment) - 1
        if part < 0:
            return 0.0
        end = self.offsets[part + 1] if part + 1 < len(self.offsets) else self.span
        return min(self.offsets[part] + moment - self.begins[part], end)


#: Maximum characters of the name of a case.
MOST_OF_NAME = 2000
_KEPT_FILES = re.compile(r"temporary files are kept in .*/(files/\w[\w.-]*)(?:, except .*)?")


@dataclass(frozen=True, slots=True)
class Text:
    """A captured text with its title. `cut`: the number of characters that were cut."""

    title: str
    body: str
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a case. `start`: seconds on the axis of the run. `facts`: lines. `files`: a folder of the run.

    `outcome`: the outcome of the attempt; `lost` if the journal has no end of it.
    """

    number: int
    outcome: Outcome
    alone: bool
    final: bool
    worker: str
    executor: str
    devices: tuple[str, ...]
    seed: int
    start: float
    duration: float
    message: str = ""
    facts: tuple[str, ...] = ()
    texts: tuple[Text, ...] = ()
    files: str = ""

    @property
    def context(self) -> str:
        """A text that says whether the process had run other cases before."""
        return "alone" if self.alone else "after other cases"


@dataclass(frozen=True, slots=True)
class PageCase:
    """One case with its verdict. `index`: its position in collection order. `ruled`: the source of its ruling."""

    index: int
    name: str
    suite: str
    outcome: Outcome
    message: str
    attempts: tuple[Attempt, ...]
    duration: float
    reproduce: str = ""
    ruled: str = ""
    #: The results on second devices, one line each.
    second: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of all attempts, without duplicates."""
        return tuple(dict.fromkeys(device for attempt in self.attempts for device in attempt.devices))


def name_of(case: str) -> str:
    """Return the id of a case as the page shows it: very long ids are cut."""
    return truncate_middle(inert.inert_text(case), MOST_OF_NAME) if len(case) > MOST_OF_NAME else inert.inert_text(case)


def page_cases(
    verdicts: Sequence[Verdict],
    starts: Mapping[str, Sequence[Start]],
    ends: Mapping[str, float],
    axis: Axis,
    text_limit: int,
    has_files: Callable[[str], bool],
) -> tuple[PageCase, ...]:
    """Return every case, in the order of the verdicts.

    `starts`: the start lines of each case. `ends`: when each executor ended. `text_limit`: maximum characters of each
    text of a red or flaky case. `has_files`: returns whether a folder of kept files exists, and can be linked.
    """
    return tuple(
        _case(index, verdict, starts.get(verdict.case, ()), ends, axis, text_limit, has_files)
        for index, verdict in enumerate(verdicts)
    )


def fitting_limit(costs: Sequence[int], budget: int, most: int) -> int:
    """Return the largest limit among `most`, its half, its quarter … 0 with which these texts fit in `budget`."""
    limit = most
    while limit and sum(min(cost, limit) for cost in costs) > budget:
        limit //= 2
    return limit


def text_costs(verdicts: Iterable[Verdict], most: int) -> list[int]:
    """Return the length of each text that a limit may cut, when cut to `most` characters."""
    return [
        min(len(text), most)
        for verdict in verdicts
        for finish in verdict.finishes
        for text in (finish.detail, finish.stdout, finish.stderr, finish.log)
        if text
    ]


def _case(
    index: int,
    verdict: Verdict,
    starts: Sequence[Start],
    ends: Mapping[str, float],
    axis: Axis,
    text_limit: int,
    has_files: Callable[[str], bool],
) -> PageCase:
    bad = verdict.outcome.is_red or verdict.outcome is Outcome.FLAKY
    limit = text_limit if bad else text_limit // GREEN_SHARE
    waiting = {(start.attempt, start.executor, start.worker): start for start in starts}
    attempts = []
    for finish in verdict.finishes:
        start = waiting.pop((finish.attempt, finish.executor, finish.worker), None)
        attempts.append(_ended(finish, start, axis, limit, has_files))
    attempts += [_lost(start, ends, axis) for start in waiting.values()]
    decided = verdict.decided
    return PageCase(
        index=index,
        name=name_of(verdict.case),
        suite=inert.inert_line(verdict.suite, 200),
        outcome=verdict.outcome,
        message=inert.inert_line(verdict.message),
        attempts=tuple(sorted(attempts, key=lambda attempt: (attempt.number, attempt.start))),
        duration=verdict.duration,
        reproduce=verdict.reproduce or "",
        ruled=decided.ruling.source if decided is not None and decided.ruling is not None else "",
        second=tuple(inert.inert_line(device.text) for device in verdict.second_devices),
    )


def _ended(finish: Finish, start: Start | None, axis: Axis, limit: int, has_files: Callable[[str], bool]) -> Attempt:
    begun = start.t if start is not None else max(0.0, finish.t - finish.duration)
    notes = tuple(inert.inert_line(note) for note in finish.notes)
    files = next((match[1] for note in finish.notes if (match := _KEPT_FILES.fullmatch(note))), "")
    return Attempt(
        number=finish.attempt,
        outcome=finish.outcome,
        alone=finish.alone,
        final=finish.final,
        worker=finish.worker,
        executor=finish.executor or "",
        devices=finish.devices,
        seed=finish.seed,
        start=axis.of(begun),
        duration=finish.duration,
        message=inert.inert_line(finish.message),
        facts=(*_attempt_facts(finish), *notes),
        texts=tuple(_texts(finish, limit)),
        files=files if files and has_files(files) else "",
    )


def _lost(start: Start, ends: Mapping[str, float], axis: Axis) -> Attempt:
    """Return an attempt without an end. It lasts until the end of its executor, if the journal has that."""
    begun = axis.of(start.t)
    over = axis.of(ends.get(start.executor or "", start.t))
    return Attempt(
        number=start.attempt,
        outcome=Outcome.LOST,
        alone=start.alone,
        final=False,
        worker=start.worker,
        executor=start.executor or "",
        devices=start.devices,
        seed=start.seed,
        start=begun,
        duration=max(0.0, over - begun),
        message="it has no end in the journal",
    )


def _attempt_facts(finish: Finish) -> Iterable[str]:
    if end := executor_end(finish):
        yield end
    for name, value in finish.properties:
        yield inert.inert_line(f"property {name} = {value}")
    if finish.gate is not None:
        yield inert.inert_line(f"requires {finish.gate.text}")
    if finish.ruling is not None:
        source = f" ({finish.ruling.source})" if finish.ruling.source else ""
        yield inert.inert_line(f"ruled {finish.ruling.outcome}{source}: {finish.ruling.text}")
    if finish.keeps:
        yield inert.inert_line(f"the case may keep memory: {finish.keeps}")
    if finish.struck:
        yield inert.inert_line(
            "injected faults: " + ", ".join(f"{name} {times}" for name, times in finish.struck.items())
        )
    if finish.phases and finish.outcome is not Outcome.PASSED:
        yield "seconds: " + ", ".join(
            f"{inert.inert_line(name, 40)} {took:.3f}" for name, took in finish.phases.items()
        )


def _texts(finish: Finish, limit: int) -> Iterable[Text]:
    for title, text in (
        ("Stack", finish.detail),
        ("Standard output", finish.stdout),
        ("Standard error", finish.stderr),
        ("Log", finish.log),
    ):
        if text.strip():
            plain = inert.inert_text(text).strip("\n")
            yield Text(title, truncate_middle(plain, limit), max(0, len(plain) - limit))
