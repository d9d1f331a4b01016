"""Static pages of a history. They load nothing and run no script; every text of a run is inert in them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from harness.core.atomic import write_atomically
from harness.core.errors import convert_to_write_error
from harness.core.text import format_count
from harness.reporting.page import inert, shell
from harness.tools.history import chart, front, text, views
from harness.tools.history.answers import NIGHTS, Answers, Failure
from harness.tools.history.changes import changed, deciding_commands
from harness.tools.history.database import HistoryError
from harness.tools.history.suspicion import Suspicion
from harness.tools.history.timeline import Observation, story

_PACKAGE = "harness.tools.history"
_SHARED = "harness.reporting.page"
#: Maximum entries of one list, and of pages of each kind; those with the latest failures have pages.
LISTED = 100
MOST_CASES = 400
MOST_GROUPS = 300
MOST_RUNS = 200
MOST_DEVICES = 300
#: Nights whose runs have pages.
RUN_NIGHTS = 14
#: The file with the names of the pages of an export.
MARKER = ".history-pages.json"


def export(answers: Answers, out: Path) -> int:
    """Write all pages into the folder, and remove those of an earlier export. Return their number."""
    before = _earlier(out)
    written = []
    with convert_to_write_error(f"{str(out)!r}"):
        for name, data in pages(answers, out):
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            written.append(name)
        write_atomically(out / MARKER, (json.dumps(sorted(written)) + "\n").encode())
        for name in before - {*written}:
            (out / name).unlink(missing_ok=True)
    return len(written)


def _earlier(out: Path) -> set[str]:
    """Return the pages of an earlier export. Raise HistoryError for a folder with something else in it."""
    if out.exists() and not out.is_dir():
        raise HistoryError(f"{str(out)!r} is not a folder: give --out a new one")
    try:
        listed = json.loads((out / MARKER).read_bytes())
    except (OSError, ValueError):
        listed = None
    if listed is None and out.exists() and any(out.iterdir()):
        raise HistoryError(f"{str(out)!r} has files that are no pages of a history: give --out a new folder")
    names = listed if isinstance(listed, list) else []
    return {name for name in names if isinstance(name, str) and ".." not in name and not name.startswith("/")}


def pages(answers: Answers, out: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each page: its name and its bytes. `out`: the folder, for links to the reports of runs."""
    yield from _Site(answers, out).pages()


@dataclass(frozen=True, slots=True)
class _Links:
    """The addresses of pages, relative to a page in the folder `root` leads to; "" for what has no page."""

    cases: frozenset[str]
    groups: frozenset[str]
    devices: frozenset[str]
    runs: Mapping[int, str]
    paged_runs: frozenset[int]

    def case(self, root: str, case: str) -> Markup:
        return Markup(f"{root}{file_name('cases', case)}" if case in self.cases else "")

    def group(self, root: str, key: str) -> Markup:
        return Markup(f"{root}{file_name('groups', key)}" if key in self.groups else "")

    def device(self, root: str, key: str) -> Markup:
        return Markup(f"{root}{file_name('devices', key)}" if key in self.devices else "")

    def run(self, root: str, number: int) -> Markup:
        return Markup(f"{root}{file_name('runs', self.runs[number])}" if number in self.paged_runs else "")

    def run_name(self, number: int) -> str:
        return self.runs[number]


def file_name(kind: str, name: str) -> str:
    """Return the name of the page of a case, group, device or run: the same in each export, and safe in any URL."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{kind}/{digest}.html"


class _Site:
    """Makes the pages."""

    def __init__(self, answers: Answers, out: Path) -> None:
        self._answers = answers
        self._out = out
        self._front = front.front(answers)
        since = self._front.night - timedelta(days=NIGHTS)
        self._groups = [each for each in answers.groups(only_open=False, most=MOST_GROUPS) if each.last > since]
        self._failures = answers.recent_failures(since)
        devices = [each.device for each in self._front.suspicions][:MOST_DEVICES]
        cases = dict.fromkeys(
            [
                *(group.case for group in self._groups),
                *(each[0] for each in self._front.flaky),
                *(each.case for each in self._front.slow),
                *(each.case for each in self._failures),
            ]
        )
        runs = answers.runs
        late = self._front.night - timedelta(days=RUN_NIGHTS)
        paged = [number for number, run in runs.items() if run["night"] > late][-MOST_RUNS:]
        paged += [lane.run["run"] for lane in self._front.lanes]
        paged += [
            number for group in self._groups for each in group.onsets for number in (each.before, each.since) if number
        ]
        self._links = _Links(
            cases=frozenset(list(cases)[:MOST_CASES]),
            groups=frozenset(group.key for group in self._groups),
            devices=frozenset(devices),
            runs={number: run["run_id"] for number, run in runs.items()},
            paged_runs=frozenset(list(dict.fromkeys(paged))[: 2 * MOST_RUNS]),
        )

    def pages(self) -> Iterator[tuple[str, bytes]]:
        """Yield each page."""
        trend = chart.bars(
            [(f"{each.night}: {format_count(each.red, 'red case')}", each.red) for each in self._front.nights],
            f"red cases by night: {self._front.nights[-1].red} in the last one",
        )
        yield "index.html", self._render("index.html", "", trend=trend)
        yield from self._lists()
        yield from self._group_pages()
        yield from self._case_pages()
        yield from self._device_pages()
        for number in sorted(self._links.paged_runs):
            yield self._run_page(number)

    def _render(self, template: str, root: str, **values: Any) -> bytes:
        runs, newest = self._answers.runs, self._front.night
        made = (
            _environment()
            .get_template(template)
            .render(
                **_styles(),
                front=self._front,
                headline=text.headline(self._front),
                links=self._links,
                root=Markup(root),
                listed=LISTED,
                age=lambda first: front.age_text(first, newest),
                spread=front.spread_text,
                began=lambda group: front.began_texts(group, runs),
                suspicion_text=text.suspicion_text,
                flaky_rate=lambda each: text.flaky_text(*each).partition(f"{each[0]}: ")[2],
                spark=text.spark,
                **values,
            )
        )
        return made.encode("utf-8", "backslashreplace")

    # ---- lists ----

    def _lists(self) -> Iterator[tuple[str, bytes]]:
        runs = self._answers.runs
        yield self._list(
            "groups.html",
            "Groups of failures",
            f"Failures with one fingerprint, of the last {NIGHTS} nights.",
            ("Group", "State", "First seen", "Last seen", "Failures", "Cases", "Machines"),
            [
                [
                    ("group", (group.key, group.title)),
                    ("", "red" if group.open else ""),
                    ("", group.first),
                    ("", group.last),
                    ("", group.failures),
                    ("", group.cases),
                    ("", len(group.lanes)),
                ]
                for group in self._groups
            ],
        )
        latest: dict[str, Failure] = {}
        for failure in self._failures:
            latest.setdefault(failure.case, failure)
        yield self._list(
            "cases.html",
            "Cases",
            f"Cases that were red, flaky or waived in the last {NIGHTS} nights, the latest first.",
            ("Case", "Last result of this kind", "Night", "Group"),
            [
                [("case", each.case), ("", each.outcome.value), ("", each.night), ("group", (each.group, each.title))]
                for each in latest.values()
            ],
        )
        yield self._list(
            "devices.html",
            "Devices",
            "The most suspicious first. Expected: the device's share of the bad results of its siblings and itself.",
            ("Device", "Name", "Host", "Bad results", "Expected", "Chance", "Health events"),
            [
                [
                    ("device", each.device),
                    ("", each.name),
                    ("", each.host),
                    ("", each.bad),
                    ("", f"{each.expected:.1f}"),
                    ("", f"{each.chance:.2g}"),
                    ("", each.events),
                ]
                for each in self._front.suspicions
            ],
        )
        yield self._list(
            "runs.html",
            "Runs",
            "The latest first.",
            ("Run", "Night", "Machine", "Red", "Flaky", "Cases", "Driver", "torch"),
            [
                [
                    ("run", number),
                    ("", run["night"]),
                    ("", run["lane"]),
                    ("", run["red"]),
                    ("", run["flaky"]),
                    ("", run["cases"]),
                    ("", run["driver"]),
                    ("", run["torch"]),
                ]
                for number, run in list(runs.items())[:-1001:-1]
            ],
        )

    def _list(
        self, name: str, heading: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[tuple[str, Any]]]
    ) -> tuple[str, bytes]:
        return name, self._render("list.html", "", heading=heading, about=about, columns=columns, rows=rows)

    # ---- pages of one thing ----

    def _group_pages(self) -> Iterator[tuple[str, bytes]]:
        of_group: dict[str, list[Failure]] = {}
        for failure in self._failures:
            of_group.setdefault(failure.group, []).append(failure)
        for group in self._groups:
            suspects = views.group_suspects(self._answers, group)
            page = self._render(
                "group.html",
                "../",
                group=group,
                suspects=suspects,
                commands=list(deciding_commands(suspects, group.case, group.reproduce)),
                failures=of_group.get(group.key, []),
            )
            yield file_name("groups", group.key), page

    def _case_pages(self) -> Iterator[tuple[str, bytes]]:
        of_case: dict[str, list[Failure]] = {}
        for failure in self._failures:
            of_case.setdefault(failure.case, []).append(failure)
        numbers = self._answers.case_numbers(sorted(self._links.cases))
        observed = self._answers.observations(numbers.values(), NIGHTS)
        for case, number in numbers.items():
            lanes = [self._lane_of_case(lane, seen) for lane, seen in observed.get(number, {}).items()]
            page = self._render("case.html", "../", case=case, lanes=lanes, failures=of_case.get(case, []))
            yield file_name("cases", case), page

    def _lane_of_case(self, lane: str, seen: Sequence[Observation]) -> dict[str, Any]:
        runs = self._answers.runs
        found = story(seen)
        changes = ""
        if found.kind.value != "green" and found.before is not None and found.since is not None:
            changes = front.changes_text(changed(runs[found.before], runs[found.since]))
        names = {each.run: f"{runs[each.run]['run_id']} ({each.night})" for each in seen}
        results = [(f"{each.night}: {each.outcome}", each.outcome) for each in seen]
        return {
            "lane": lane,
            "text": text.story_text(found, names, changes),
            "strip": chart.strip(results, f"{found.kind}, {format_count(len(seen), 'run')}"),
            "curve": chart.line(
                [each.seconds for each in seen if each.seconds is not None], "duration of the case by run"
            ),
        }

    def _device_pages(self) -> Iterator[tuple[str, bytes]]:
        for each in self._front.suspicions:
            if each.device in self._links.devices:
                yield file_name("devices", each.device), self._device_page(each)

    def _device_page(self, each: Suspicion) -> bytes:
        device = self._answers.device(each.device)
        nights = device["nights"][-NIGHTS:]
        trend = chart.bars(
            [(f"{night}: {bad} of {ran}", bad) for night, ran, bad in nights], "red and flaky results by night"
        )
        failures = self._answers.failures_on(each.device)
        return self._render("device.html", "../", device=device, suspicion=each, trend=trend, failures=failures)

    def _run_page(self, number: int) -> tuple[str, bytes]:
        run = self._answers.runs[number]
        news = self._answers.news(number)
        changes = "" if news.previous is None else front.changes_text(changed(self._answers.runs[news.previous], run))
        page = self._render(
            "run.html",
            "../",
            run=run,
            news=news,
            changes=changes,
            failures=self._answers.failures(number),
            page=self._report(run),
        )
        return file_name("runs", run["run_id"]), page

    def _report(self, run: Mapping[str, Any]) -> Markup:
        """Return the relative address of the run's own page, if it is on this machine; otherwise ""."""
        path = Path(run["page"]) if run["page"] else None
        if path is None or not path.is_file():
            return Markup("")
        return Markup(quote(os.path.relpath(path, (self._out / "runs").resolve())))


@functools.cache
def _styles() -> dict[str, Any]:
    styles = [shell.asset(_SHARED, "page.css"), shell.asset(_PACKAGE, "history.css")]
    return {"styles": [Markup(style) for style in styles], "policy": Markup(shell.policy(styles, []))}


@functools.cache
def _environment() -> Environment:
    environment = shell.jinja_environment(_PACKAGE)
    environment.filters.update({"counted": format_count, "line": inert.inert_line})
    return environment
