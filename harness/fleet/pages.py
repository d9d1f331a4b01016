"""The pages of a history.

Every text of a run is inert in them, and everything except charts and keys works without a script.

The pages load only their own scripts, from the folder `assets` beside them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.fleet import front
from harness.fleet import history_text as text
from harness.fleet.answers import NIGHTS, Answers, FailureGroup, HistoryFailure
from harness.fleet.changes import changed, deciding_commands
from harness.fleet.front import Front
from harness.fleet.suspicion import DeviceSuspicion
from harness.fleet.timeline import Observation, story
from harness.reporting.page import inert, shell

_PACKAGE = "harness.fleet"
#: The table of a case: columns, and how the script draws them.
_CASE_COLUMNS = (
    ("Night", ""),
    ("Result", "strip"),
    ("Seconds", "line"),
    ("MiB of host memory", "line"),
    ("MiB of device memory", "line"),
)
#: Maximum entries of one list.
LISTED = 100
#: Maximum runs of the list of runs.
MOST_LISTED_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses of pages, relative to a page whose path to the top is `root`; "" for items without a page.

    `runs`: the ids of all runs, by number. `paged_runs`: the numbers of those with a page.
    """

    cases: frozenset[str]
    groups: frozenset[str]
    devices: frozenset[str]
    runs: Mapping[int, str]
    paged_runs: frozenset[int]

    def case(self, root: str, case: str) -> Markup:
        return Markup(f"{root}{page_file_name('cases', case)}" if case in self.cases else "")

    def group(self, root: str, key: str) -> Markup:
        return Markup(f"{root}{page_file_name('groups', key)}" if key in self.groups else "")

    def device(self, root: str, key: str) -> Markup:
        return Markup(f"{root}{page_file_name('devices', key)}" if key in self.devices else "")

    def run(self, root: str, number: int) -> Markup:
        return Markup(f"{root}{page_file_name('runs', self.runs[number])}" if number in self.paged_runs else "")

    def run_name(self, number: int) -> str:
        return self.runs[number]


def page_file_name(kind: str, name: str) -> str:
    """Return the name of the page of a case, group, device or run: the same in each export, and safe in any URL."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{kind}/{digest}.html"


class Pages:
    """Makes the pages of a history. `front`: the values of the front page; every page names its night."""

    def __init__(self, answers: Answers, made: Front, links: Links) -> None:
        self._answers = answers
        self._front = made
        self._links = links

    def _render(self, template: str, root: str, **values: Any) -> bytes:
        runs, newest = self._answers.runs, self._front.night
        made = (
            _environment()
            .get_template(template)
            .render(
                **_assets(),
                front=self._front,
                headline=text.headline(self._front),
                links=self._links,
                root=Markup(root),
                listed=LISTED,
                age=lambda first: front.age_text(first, newest),
                spread=front.spread_text,
                began=lambda group: front.began_texts(group, runs),
                suspicion_text=text.suspicion_text,
                flaky_rate=lambda row: text.flaky_text(*row).partition(f"{row[0]}: ")[2],
                spark=text.spark,
                **values,
            )
        )
        return made.encode("utf-8", "backslashreplace")

    # ---- the front page and lists ----

    def index(self) -> bytes:
        """Return the front page."""
        columns = (("Night", ""), ("Red cases", "bars"), ("Runs", ""), ("Red runs", ""))
        nights = [("", (night.night, night.red, night.runs, night.red_runs)) for night in self._front.nights]
        return self._render("index.html", "", columns=columns, nights=nights)

    def groups(self, groups: Sequence[FailureGroup]) -> bytes:
        """Return the list of groups."""
        return self._list(
            "groups",
            "Groups of failures",
            f"Failures with one fingerprint, of the last {NIGHTS} nights.",
            ("Group", "State", "First seen", "Last seen", "Failures", "Cases", "Machines"),
            [
                [
                    ("group", (group.key, group.title)),
                    ("", "red" if group.open else ""),
                    ("night", group.first),
                    ("night", group.last),
                    ("", group.failures),
                    ("", group.cases),
                    ("", len(group.lanes)),
                ]
                for group in groups
            ],
        )

    def cases(self, failures: Sequence[HistoryFailure]) -> bytes:
        """Return the list of cases with failures, the latest failures first."""
        latest: dict[str, HistoryFailure] = {}
        for failure in failures:
            latest.setdefault(failure.case, failure)
        return self._list(
            "cases",
            "Cases",
            f"Cases that were red, flaky or waived in the last {NIGHTS} nights, the latest first.",
            ("Case", "Last result of this kind", "Night", "Group"),
            [
                [
                    ("case", failure.case),
                    ("", failure.outcome.value),
                    ("night", failure.night),
                    ("group", (failure.group, failure.title)),
                ]
                for failure in latest.values()
            ],
        )

    def devices(self) -> bytes:
        """Return the list of devices."""
        return self._list(
            "devices",
            "Devices",
            "The most suspicious first. Expected: the device's share of the bad results of its siblings and itself.",
            ("Device", "Name", "Host", "Bad results", "Expected", "Chance", "Health events"),
            [
                [
                    ("device", suspicion.device),
                    ("", suspicion.name),
                    ("", suspicion.host),
                    ("", suspicion.bad),
                    ("", f"{suspicion.expected:.1f}"),
                    ("", f"{suspicion.chance:.2g}"),
                    ("", suspicion.events),
                ]
                for suspicion in self._front.suspicions
            ],
        )

    def runs(self) -> bytes:
        """Return the list of the latest runs."""
        return self._list(
            "runs",
            "Runs",
            "The latest first.",
            ("Run", "Night", "Machine", "Red", "Flaky", "Cases", "Driver", "torch"),
            [
                [
                    ("run", number),
                    ("night", run["night"]),
                    ("", run["lane"]),
                    ("", run["red"]),
                    ("", run["flaky"]),
                    ("", run["cases"]),
                    ("", run["driver"]),
                    ("", run["torch"]),
                ]
                for number, run in list(self._answers.runs.items())[: -MOST_LISTED_RUNS - 1 : -1]
            ],
        )

    def _list(
        self, page: str, heading: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[tuple[str, Any]]]
    ) -> bytes:
        return self._render("list.html", "", page=page, heading=heading, about=about, columns=columns, rows=rows)

    # ---- pages of one thing ----

    def group(self, group: FailureGroup, failures: Sequence[HistoryFailure]) -> bytes:
        """Return the page of a group."""
        suspects = self._answers.suspects(group)
        commands = list(deciding_commands(suspects, group.case, group.reproduce))
        return self._render("group.html", "../", group=group, suspects=suspects, commands=commands, failures=failures)

    def case(
        self, case: str, observed: Mapping[str, Sequence[Observation]], failures: Sequence[HistoryFailure]
    ) -> bytes:
        """Return the page of a case. `observed`: its results by lane."""
        lanes = [self._lane_of_case(lane, seen) for lane, seen in observed.items()]
        return self._render("case.html", "../", case=case, lanes=lanes, failures=failures)

    def _lane_of_case(self, lane: str, seen: Sequence[Observation]) -> dict[str, Any]:
        runs = self._answers.runs
        verdict = story(seen)
        changes = ""
        if verdict.kind.value != "green" and verdict.before is not None and verdict.since is not None:
            changes = front.changes_text(changed(runs[verdict.before], runs[verdict.since]))
        names = {observation.run: f"{runs[observation.run]['run_id']} ({observation.night})" for observation in seen}
        return {
            "lane": lane,
            "text": text.story_text(verdict, names, changes),
            "label": f"Results, duration and memory: {verdict.kind}, {format_count(len(seen), 'run')}",
            "columns": _CASE_COLUMNS,
            "rows": [
                (
                    _tone(observation.outcome),
                    (observation.night, observation.outcome.value, *map(_number, _measures(observation))),
                )
                for observation in seen
            ],
        }

    def device(self, suspicion: DeviceSuspicion) -> bytes:
        """Return the page of a device."""
        device = self._answers.device(suspicion.device)
        columns = (("Night", ""), ("Red or flaky", "bars"), ("Results", ""))
        nights = [("", (night, bad, ran)) for night, ran, bad in device["nights"][-NIGHTS:]]
        failures = self._answers.failures_on(suspicion.device)
        values = {"device": device, "suspicion": suspicion, "failures": failures}
        return self._render("device.html", "../", columns=columns, nights=nights, **values)

    def run(self, number: int, report: Markup) -> bytes:
        """Return the page of a run. `report`: the address of its own page, or ""."""
        run = self._answers.runs[number]
        news = self._answers.news(number)
        changes = "" if news.previous is None else front.changes_text(changed(self._answers.runs[news.previous], run))
        failures = self._answers.failures(number)
        return self._render("run.html", "../", run=run, news=news, changes=changes, failures=failures, report=report)


def _measures(observation: Observation) -> tuple[float | None, ...]:
    return observation.seconds, observation.host_memory, observation.device_memory


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _tone(outcome: Outcome) -> str:
    """Return the name of the colour of a result, for the script."""
    if outcome.is_red:
        return "bad"
    if outcome is Outcome.PASSED:
        return "good"
    return "odd" if outcome in (Outcome.FLAKY, Outcome.WAIVED) else "none"


@functools.cache
def scripts() -> dict[str, str]:
    """Return the scripts of the pages, by their file names."""
    assets = [(shell.PACKAGE, "uplot.min.js"), (shell.PACKAGE, "shared.js"), (_PACKAGE, "history.js")]
    texts = {name: shell.asset(package, name) for package, name in assets}
    # Another text has another name, because a browser caches a file by its name.
    return {
        f"assets/{hashlib.sha256(script.encode()).hexdigest()[:12]}-{name}": script for name, script in texts.items()
    }


@functools.cache
def _assets() -> dict[str, Any]:
    policy = shell.content_policy(_sheets(), []).replace("script-src ;", "script-src 'self';")
    return {
        "styles": [Markup(style) for style in _sheets()],
        "scripts": [*map(Markup, scripts())],
        "policy": Markup(policy),
    }


def _sheets() -> list[str]:
    names = [(shell.PACKAGE, "uplot.min.css"), (shell.PACKAGE, "page.css"), (_PACKAGE, "history.css")]
    return [shell.asset(package, name) for package, name in names]


@functools.cache
def _environment() -> Environment:
    environment = shell.jinja_environment(_PACKAGE)
    environment.filters.update({"counted": format_count, "line": inert.inert_line})
    return environment
