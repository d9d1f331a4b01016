"""The data for the script of a page: one short JSON value, in columns, from which no text can break out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.checks.meters import inflect_noun
from harness.core.outcome import Outcome
from harness.reporting.page import inert
from harness.reporting.page.cases import Attempt, PageCase
from harness.reporting.page.model import Page
from harness.reporting.page.tables import NONE, Life
from harness.reporting.repetitions import Repeated

#: Maximum number of memory plots on a page. Plots of growing cases come first.
MOST_PLOTS = 200
#: Maximum number of values per plot; longer series are thinned out.
_MOST_POINTS = 1000
#: The number of each outcome in the data.
_OUTCOMES = {outcome: number for number, outcome in enumerate(Outcome)}


class _Names:
    """Numbers for texts, so that the data holds each text once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        return [*self._numbers]


def page_data(page: Page, in_full: Iterable[PageCase]) -> bytes:
    """Return the data of the page as JSON for a ``script`` element. Texts of the cases `in_full` are left out."""
    return encode_for_script(_value(page, {case.index for case in in_full}))


def encode_for_script(value: object) -> bytes:
    r"""Encode a value as JSON without ``</script>``, ``<!--`` or line separators: ``<``, ``>``, ``&`` become ``\u003c``
    …
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def _value(page: Page, in_full: set[int]) -> dict[str, Any]:
    columns = _Columns()
    rows = [columns.case(case) for case in page.cases]
    more = {
        case.index: [_more(attempt) for attempt in case.attempts] for case in page.cases if case.index not in in_full
    }
    return {
        "hidden": inert.HIDDEN_IN_SCRIPT,
        "outcomes": [outcome.value for outcome in Outcome],
        "red": [_OUTCOMES[o] for o in Outcome if o.is_red or (page.fail_on_flaky and o is Outcome.FLAKY)],
        "begun": page.begun,
        "span": round(page.span, 4),
        "parts": [round(part, 4) for part in page.parts],
        "files": columns.files.texts,
        "suites": columns.suites.texts,
        "cases": rows,
        "more": {index: attempts for index, attempts in more.items() if any(attempts)},
        "second": {case.index: case.second for case in page.cases if case.second},
        "reproduce": _commands(page),
        "lives": [columns.life(life) for life in page.lives],
        "marks": [
            [inert.inert_line(mark.device, 200), round(mark.at, 4), mark.state, mark.text] for mark in page.marks
        ],
        "sets": columns.device_sets,
        "workers": columns.workers.texts,
        "executors": columns.executors.texts,
        "names": {inert.inert_line(use.device, 200): use.name for use in page.uses},
        "bins": [[_seconds(low), _seconds(high), number] for low, high, number in page.durations.bins],
        "plots": [_plot(entry) for entry in page.repeated[:MOST_PLOTS]],
    }


class _Columns:
    """Rows of the data. Files, suites, workers, executors and sets of devices are numbers in them."""

    def __init__(self) -> None:
        self.files, self.suites, self.workers, self.executors = _Names(), _Names(), _Names(), _Names()
        self.device_sets: list[list[str]] = []
        self._sets = _Names()

    def case(self, case: PageCase) -> list[Any]:
        file, separator, rest = case.name.partition("::")
        return [
            self.files.number(file + separator),
            rest,
            self.suites.number(case.suite),
            _OUTCOMES[case.outcome],
            round(case.duration, 4),
            case.message,
            [self._attempt(attempt) for attempt in case.attempts],
        ]

    def life(self, life: Life) -> list[Any]:
        return [
            self.executors.number(inert.inert_line(life.executor, 200)),
            self.workers.number(inert.inert_line(life.worker, 200)),
            self._set_of(life.devices),
            round(life.start, 4),
            round(life.end, 4),
            int(life.restart),
            life.text,
            int(life.search),
        ]

    def _attempt(self, attempt: Attempt) -> list[int | float]:
        return [
            _OUTCOMES[attempt.outcome],
            round(attempt.start, 4),
            round(attempt.duration, 4),
            self.workers.number(inert.inert_line(attempt.worker, 200)),
            self.executors.number(inert.inert_line(attempt.executor, 200)),
            self._set_of(attempt.devices),
            attempt.seed,
            attempt.number,
            int(attempt.alone) + 2 * int(attempt.final),
        ]

    def _set_of(self, devices: Sequence[str]) -> int:
        names = [inert.inert_line(device, 200) for device in devices] or [NONE]
        number = self._sets.number("\0".join(names))
        if number == len(self.device_sets):
            self.device_sets.append(names)
        return number


def _commands(page: Page) -> dict[str, str]:
    """Return every command in its exact form for copying: by case number, or as f0 and b0 for findings and searches."""
    commands = {str(case.index): case.reproduce for case in page.cases if case.reproduce}
    commands |= {f"f{number}": finding.reproduce for number, finding in enumerate(page.findings) if finding.reproduce}
    return commands | {f"b{number}": search.reproduce for number, search in enumerate(page.bisected)}


def _more(attempt: Attempt) -> dict[str, Any]:
    """Return the rare fields of an attempt."""
    fields: dict[str, Any] = {}
    if attempt.message and attempt.outcome is not Outcome.PASSED:
        fields["message"] = attempt.message
    if attempt.facts:
        fields["facts"] = attempt.facts
    if attempt.texts:
        fields["texts"] = [[text.title, text.body, text.cut] for text in attempt.texts]
    if attempt.files:
        fields["files"] = attempt.files
    return fields


def _seconds(seconds: float) -> float:
    return -1 if seconds == float("inf") else seconds


def _plot(entry: Repeated) -> dict[str, Any]:
    values = entry.series.values
    step = -(-len(values) // _MOST_POINTS)
    return {
        "unit": entry.series.unit,
        "x": [*range(1, len(values) + 1, step)],
        "y": [*values[::step]],
        "label": f"{inflect_noun(entry.series.about.noun, 0)}, executor {inert.inert_line(entry.series.executor, 100)}",
    }
