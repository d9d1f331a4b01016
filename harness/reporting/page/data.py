"""The data for the script of a page: one short JSON value, in columns, from which no text can break out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.checks.meters.table import inflect_noun
from harness.core.outcome import Outcome
from harness.reporting.page import inert
from harness.reporting.page.cases import Attempt, PageCase
from harness.reporting.page.model import Page
from harness.reporting.page.timeline import NONE
from harness.reporting.repetitions import Repeated

#: Maximum number of memory plots on a page. Plots of growing cases come first.
MOST_PLOTS = 200
#: Maximum number of values per plot; longer series are thinned out.
_MOST_POINTS = 1000


class _Names:
    """Texts by number, so that the data holds each of them once."""

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
    outcomes = [outcome.value for outcome in Outcome]
    numbers = {outcome: number for number, outcome in enumerate(Outcome)}
    files, suites, sets, workers, executors = _Names(), _Names(), _Names(), _Names(), _Names()
    device_sets: list[list[str]] = []

    def set_of(devices: Sequence[str]) -> int:
        names = [inert.inert_line(device, 200) for device in devices] or [NONE]
        number = sets.number("\0".join(names))
        if number == len(device_sets):
            device_sets.append(names)
        return number

    def attempt(each: Attempt) -> list[int | float]:
        return [
            numbers[each.outcome],
            round(each.start, 4),
            round(each.duration, 4),
            workers.number(inert.inert_line(each.worker, 200)),
            executors.number(inert.inert_line(each.executor, 200)),
            set_of(each.devices),
            each.seed,
            each.number,
            int(each.alone) + 2 * int(each.final),
        ]

    rows = []
    more: dict[int, Any] = {}
    for case in page.cases:
        file, separator, rest = case.name.partition("::")
        rows.append(
            [
                files.number(file + separator),
                rest,
                suites.number(case.suite),
                numbers[case.outcome],
                round(case.duration, 4),
                case.message,
                [attempt(each) for each in case.attempts],
            ]
        )
        if case.index not in in_full and (extra := [_more(each) for each in case.attempts]) and any(extra):
            more[case.index] = extra
    return {
        "hidden": inert.HIDDEN_IN_SCRIPT,
        "outcomes": outcomes,
        "red": [numbers[o] for o in Outcome if o.is_red or (page.fail_on_flaky and o is Outcome.FLAKY)],
        "begun": page.begun,
        "span": round(page.span, 4),
        "parts": [round(each, 4) for each in page.parts],
        "files": files.texts,
        "suites": suites.texts,
        "cases": rows,
        "more": more,
        "second": {case.index: case.second for case in page.cases if case.second},
        "reproduce": _commands(page),
        "lives": [
            [
                executors.number(inert.inert_line(life.executor, 200)),
                workers.number(inert.inert_line(life.worker, 200)),
                set_of(life.devices),
                round(life.start, 4),
                round(life.end, 4),
                int(life.restart),
                life.text,
                int(life.search),
            ]
            for life in page.lives
        ],
        "marks": [
            [inert.inert_line(mark.device, 200), round(mark.at, 4), mark.state, mark.text] for mark in page.marks
        ],
        "sets": device_sets,
        "workers": workers.texts,
        "executors": executors.texts,
        "names": {inert.inert_line(use.device, 200): use.name for use in page.uses},
        "bins": [[_seconds(low), _seconds(high), number] for low, high, number in page.durations.bins],
        "plots": [_plot(each) for each in page.repeated[:MOST_PLOTS]],
    }


def _commands(page: Page) -> dict[str, str]:
    """Return every command in its exact form for copying: by case number, and f0 and b0 for findings and searches."""
    found = {str(case.index): case.reproduce for case in page.cases if case.reproduce}
    found |= {f"f{number}": each.reproduce for number, each in enumerate(page.findings) if each.reproduce}
    return found | {f"b{number}": each.reproduce for number, each in enumerate(page.bisected)}


def _more(attempt: Attempt) -> dict[str, Any]:
    """Return the rare fields of an attempt."""
    found: dict[str, Any] = {}
    if attempt.message and attempt.outcome is not Outcome.PASSED:
        found["message"] = attempt.message
    if attempt.facts:
        found["facts"] = attempt.facts
    if attempt.texts:
        found["texts"] = [[text.title, text.body, text.cut] for text in attempt.texts]
    if attempt.files:
        found["files"] = attempt.files
    return found


def _seconds(seconds: float) -> float:
    return -1 if seconds == float("inf") else seconds


def _plot(each: Repeated) -> dict[str, Any]:
    values = each.series.values
    step = -(-len(values) // _MOST_POINTS)
    return {
        "unit": each.series.unit,
        "x": [*range(1, len(values) + 1, step)],
        "y": [*values[::step]],
        "label": f"{inflect_noun(each.series.about.noun, 0)}, executor {inert.inert_line(each.series.executor, 100)}",
    }
