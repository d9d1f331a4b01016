"""The cases of a run as a page shows them: attempts in order, texts cut to a limit. Plain values, pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.outcome import Outcome
from harness.core.text import truncate_middle
from harness.journal.events import Finish, Start
from harness.journal.verdicts import Verdict
from harness.protocol.exit_text import format_executor_exit
from harness.reporting.page import inert
from harness.reporting.page.axis import Axis

#: Of texts of cases that are not red, this part of the limit is kept.
_GREEN_SHARE = 8
#: Characters of the name of a case that are kept.
MOST_OF_NAME = 2000
_KEPT_FILES = re.compile(r"temporary files are kept in .*/(files/\w[\w.-]*)(?:, except .*)?")


@dataclass(frozen=True, slots=True)
class Text:
    """A captured text under its title. `cut`: how many of its characters were left out."""

    title: str
    body: str
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a case. `start`: seconds on the axis of the run. `facts`: lines. `files`: a folder of the run.

    `outcome` is that of the attempt; `lost` if it has no end in the journal.
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
    def company(self) -> str:
        """Whether its process had run other cases before, in words."""
        return "alone" if self.alone else "after other cases"


@dataclass(frozen=True, slots=True)
class Case:
    """One case with its verdict. `index` is its place in the order of collection, `ruled` the source of its ruling."""

    index: int
    name: str
    suite: str
    outcome: Outcome
    message: str
    attempts: tuple[Attempt, ...]
    duration: float
    reproduce: str = ""
    ruled: str = ""
    #: What came of it on second devices, a line each.
    second: tuple[str, ...] = ()

    @property
    def has_texts(self) -> bool:
        return any(attempt.texts for attempt in self.attempts)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of all its attempts, each once."""
        return tuple(dict.fromkeys(device for attempt in self.attempts for device in attempt.devices))


def name_of(case: str) -> str:
    """The id of a case as the page has it: a very long one is cut."""
    return truncate_middle(inert.plain(case), MOST_OF_NAME) if len(case) > MOST_OF_NAME else inert.plain(case)


def cases(
    verdicts: Sequence[Verdict],
    starts: Mapping[str, Sequence[Start]],
    ends: Mapping[str, float],
    axis: Axis,
    text_limit: int,
    has_files: Callable[[str], bool],
) -> tuple[Case, ...]:
    """Every case, in the order of the verdicts.

    `starts`: the start lines of each case. `ends`: when each executor ended. `text_limit`: the characters that are kept
    of each text of a red or flaky case. `has_files`: whether a folder of kept files is there, so that it is linked.
    """
    return tuple(
        _case(index, verdict, starts.get(verdict.case, ()), ends, axis, text_limit, has_files)
        for index, verdict in enumerate(verdicts)
    )


def fitting_limit(costs: Sequence[int], budget: int, most: int) -> int:
    """The largest limit out of `most`, its half, its quarter … 0 with which texts of these sizes fit in `budget`."""
    limit = most
    while limit and sum(min(cost, limit) for cost in costs) > budget:
        limit //= 2
    return limit


def costs(verdicts: Iterable[Verdict], most: int) -> list[int]:
    """The characters of each text that a limit may cut, when cut to `most`."""
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
) -> Case:
    bad = verdict.outcome.is_red or verdict.outcome is Outcome.FLAKY
    limit = text_limit if bad else text_limit // _GREEN_SHARE
    waiting = {(start.attempt, start.executor, start.worker): start for start in starts}
    attempts = []
    for finish in verdict.finishes:
        start = waiting.pop((finish.attempt, finish.executor, finish.worker), None)
        attempts.append(_ended(finish, start, axis, limit, has_files))
    attempts += [_lost(start, ends, axis) for start in waiting.values()]
    decided = verdict.decided
    return Case(
        index=index,
        name=name_of(verdict.case),
        suite=inert.line(verdict.suite, 200),
        outcome=verdict.outcome,
        message=inert.line(verdict.message),
        attempts=tuple(sorted(attempts, key=lambda attempt: (attempt.number, attempt.start))),
        duration=verdict.duration,
        reproduce=verdict.reproduce or "",
        ruled=decided.ruling.source if decided is not None and decided.ruling is not None else "",
        second=tuple(inert.line(each.text) for each in verdict.second_devices),
    )


def _ended(finish: Finish, start: Start | None, axis: Axis, limit: int, has_files: Callable[[str], bool]) -> Attempt:
    begun = start.t if start is not None else max(0.0, finish.t - finish.duration)
    notes = tuple(inert.line(note) for note in finish.notes)
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
        message=inert.line(finish.message),
        facts=(*_facts(finish), *notes),
        texts=tuple(_texts(finish, limit)),
        files=files if files and has_files(files) else "",
    )


def _lost(start: Start, ends: Mapping[str, float], axis: Axis) -> Attempt:
    """An attempt without an end. It took until its executor ended, if that is known."""
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


def _facts(finish: Finish) -> Iterable[str]:
    if finish.exit_status or (finish.exit_status == 0 and finish.outcome.breaks_executor):
        yield f"the executor ended with {format_executor_exit(finish.exit_status, finish.outcome)}"
    for name, value in finish.properties:
        yield inert.line(f"property {name} = {value}")
    if finish.gate is not None:
        gate = finish.gate
        yield inert.line(f"requires {gate.capability}: wanted {gate.wanted}, found {gate.found}")
    if finish.ruling is not None:
        source = f" ({finish.ruling.source})" if finish.ruling.source else ""
        yield inert.line(f"ruled {finish.ruling.outcome}{source}: {finish.ruling.text}")
    if finish.keeps:
        yield inert.line(f"the case may keep memory: {finish.keeps}")
    if finish.struck:
        yield inert.line("injected faults: " + ", ".join(f"{name} {times}" for name, times in finish.struck.items()))
    if finish.phases and finish.outcome is not Outcome.PASSED:
        yield "seconds: " + ", ".join(f"{inert.line(name, 40)} {took:.3f}" for name, took in finish.phases.items())


def _texts(finish: Finish, limit: int) -> Iterable[Text]:
    for title, text in (
        ("Stack", finish.detail),
        ("Standard output", finish.stdout),
        ("Standard error", finish.stderr),
        ("Log", finish.log),
    ):
        if text.strip():
            plain = inert.plain(text).strip("\n")
            yield Text(title, truncate_middle(plain, limit), max(0, len(plain) - limit))
