"""Static pages of a history in a folder: the last night, and each recent group, case, device and run.

Every text of a run is inert in them, and everything except charts and keys works without a script. The pages load only
their own scripts, from the folder `assets` beside them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from harness.core.atomic import write_atomically
from harness.core.errors import convert_to_write_error
from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.fleet.answers import NIGHTS, Answers, FailureGroup, HistoryFailure
from harness.fleet.reports import story_text, words
from harness.fleet.store import HistoryError
from harness.fleet.texts import PACKAGE, render_page
from harness.fleet.timeline import Observation, changes_text, deciding_commands, story
from harness.reporting.page import document

#: Maximum pages of each kind. Those with the latest failures have pages.
MOST_CASES = 400
MOST_GROUPS = 300
MOST_RUNS = 200
MOST_DEVICES = 300
#: Maximum entries of one list, and of the list of runs.
LISTED = 100
MOST_LISTED_RUNS = 1000
#: Nights whose runs have pages.
RUN_NIGHTS = 14
#: The file with the names of the pages of an export.
MARKER = ".history-pages.json"
#: The table of a case, of the front page and of a device: columns, and how the script draws them.
_OF_CASE = (
    ("Night", ""),
    ("Result", "strip"),
    ("Seconds", "line"),
    ("MiB of host memory", "line"),
    ("MiB of device memory", "line"),
)
_OF_NIGHTS = (("Night", ""), ("Red cases", "bars"), ("Runs", ""), ("Red runs", ""))
_OF_DEVICE = (("Night", ""), ("Red or flaky", "bars"), ("Results", ""))


def export_site(answers: Answers, out: Path) -> int:
    """Write all pages into the folder, and remove those of an earlier export. Return their number."""
    before = _earlier(out)
    written = []
    with convert_to_write_error(f"{str(out)!r}"):
        for name, data in [*_scripts().items(), *_Pages(answers, out).made()]:
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            written.append(name)
        write_atomically(out / MARKER, (json.dumps(sorted(written)) + "\n").encode())
        for name in before - {*written}:
            (out / name).unlink(missing_ok=True)
    return sum(name.endswith(".html") for name in written)


def _earlier(out: Path) -> set[str]:
    """Return the pages of an earlier export. Raise HistoryError for a folder with other files."""
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


def page_file_name(kind: str, name: str) -> str:
    """Return the name of the page of a case, group, device or run: the same in each export, and safe in any URL."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{kind}/{digest}.html"


class _Pages:
    """Chooses the pages to make, and makes them. `out`: the folder, for links to the reports of runs."""

    def __init__(self, answers: Answers, out: Path) -> None:
        self._answers = answers
        self._out = out
        since = answers.last_night - timedelta(days=NIGHTS)
        self._groups = [group for group in answers.groups(only_open=False, most=MOST_GROUPS) if group.last > since]
        self._failures = answers.recent_failures(since)
        cases = dict.fromkeys(
            [
                *(group.case for group in self._groups),
                *(case for case, *_ in answers.flaky_cases),
                *(slow.case for slow in answers.slow_cases),
                *(failure.case for failure in self._failures),
            ]
        )
        self._cases = list(cases)[:MOST_CASES]
        self._devices = [suspicion.device for suspicion in answers.suspicions][:MOST_DEVICES]
        late = answers.last_night - timedelta(days=RUN_NIGHTS)
        runs = [number for number, run in answers.runs.items() if run["night"] > late][-MOST_RUNS:]
        runs += [lane.run["run"] for lane in answers.present]
        begins = [onset for group in self._groups for onset in group.onsets]
        runs += [number for onset in begins for number in (onset.before, onset.since) if number]
        self._runs = sorted(list(dict.fromkeys(runs))[: 2 * MOST_RUNS])
        self._paged = {
            *(page_file_name("groups", group.key) for group in self._groups),
            *(page_file_name("cases", case) for case in self._cases),
            *(page_file_name("devices", device) for device in self._devices),
            *(page_file_name("runs", answers.runs[number]["run_id"]) for number in self._runs),
        }

    def made(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the contents of each page."""
        answers = self._answers
        nights = [("", (night.night, night.red, night.runs, night.red_runs)) for night in answers.nights]
        yield "index.html", self._rendered("index.html", columns=_OF_NIGHTS, nights=nights)
        yield "groups.html", self._rendered("groups.html", groups=self._groups, window=NIGHTS)
        latest = {failure.case: failure for failure in reversed(self._failures)}
        failures = [latest[case] for case in dict.fromkeys(failure.case for failure in self._failures)]
        yield "cases.html", self._rendered("cases.html", failures=failures, window=NIGHTS)
        yield "devices.html", self._rendered("devices.html")
        runs = list(answers.runs.values())[: -MOST_LISTED_RUNS - 1 : -1]
        yield "runs.html", self._rendered("runs.html", runs=runs)
        of_group, of_case = self._failures_by("group"), self._failures_by("case")
        for group in self._groups:
            yield page_file_name("groups", group.key), self._group(group, of_group.get(group.key, []))
        numbers = answers.case_numbers(sorted(self._cases))
        observed = answers.observations(numbers.values(), NIGHTS)
        for case, number in numbers.items():
            yield page_file_name("cases", case), self._case(case, observed.get(number, {}), of_case.get(case, []))
        for device in self._devices:
            yield page_file_name("devices", device), self._device(device)
        for number in self._runs:
            yield page_file_name("runs", answers.runs[number]["run_id"]), self._run(number)

    def _failures_by(self, name: str) -> dict[str, list[HistoryFailure]]:
        grouped: dict[str, list[HistoryFailure]] = {}
        for failure in self._failures:
            grouped.setdefault(getattr(failure, name), []).append(failure)
        return grouped

    def _group(self, group: FailureGroup, failures: Sequence[HistoryFailure]) -> bytes:
        suspects = self._answers.suspects(group)
        commands = list(deciding_commands(suspects, group.case, group.reproduce))
        return self._rendered("group.html", "../", group=group, suspects=suspects, commands=commands, failures=failures)

    def _case(
        self, case: str, observed: Mapping[str, Sequence[Observation]], failures: Sequence[HistoryFailure]
    ) -> bytes:
        """Return the page of a case. `observed`: its results by lane."""
        lanes = []
        for lane, seen in observed.items():
            verdict = story(seen)
            label = f"Results, duration and memory: {verdict.kind}, {format_count(len(seen), 'run')}"
            lanes.append((lane, story_text(verdict, self._answers.runs), label, [*map(_row, seen)]))
        return self._rendered("case.html", "../", case=case, lanes=lanes, failures=failures, columns=_OF_CASE)

    def _device(self, key: str) -> bytes:
        device = self._answers.device(key)
        nights = [("", (night, bad, ran)) for night, ran, bad in device["nights"][-NIGHTS:]]
        suspicion = next(each for each in self._answers.suspicions if each.device == key)
        values = {"device": device, "suspicion": suspicion, "failures": self._answers.failures_on(key)}
        return self._rendered("device.html", "../", columns=_OF_DEVICE, nights=nights, **values)

    def _run(self, number: int) -> bytes:
        run, news = self._answers.runs[number], self._answers.news(number)
        changes = "" if news.previous is None else changes_text(self._answers.runs[news.previous], run)
        values = {"failures": self._answers.failures(number), "report": self._report(run)}
        return self._rendered("run.html", "../", run=run, news=news, changes=changes, **values)

    def _report(self, run: Mapping[str, Any]) -> Markup:
        """Return the relative address of the run's own page, if it is on this machine; otherwise ""."""
        path = Path(run["page"]) if run["page"] else None
        if path is None or not path.is_file():
            return Markup("")
        return Markup(quote(os.path.relpath(path, (self._out / "runs").resolve())))

    def _rendered(self, template: str, root: str = "", **values: Any) -> bytes:
        """Return a page. `root`: the path from it to the front page."""
        common = {**_assets(), **words(self._answers), "answers": self._answers, "listed": LISTED}
        href = functools.partial(self._address, root)
        return render_page(template, **common, root=Markup(root), href=href, **values)

    def _address(self, root: str, kind: str, name: str) -> Markup:
        """Return the address of the page of a case, group, device or run; "" without one."""
        file = page_file_name(kind, name)
        return Markup(root + file if file in self._paged else "")


def _row(seen: Observation) -> tuple[str, tuple[object, ...]]:
    """Return a row of the table of a case, with the name of its colour for the script."""
    odd = seen.outcome in (Outcome.FLAKY, Outcome.WAIVED)
    tone = "bad" if seen.outcome.is_red else "good" if seen.outcome is Outcome.PASSED else "odd" if odd else "none"
    numbers = (seen.seconds, seen.host_memory, seen.device_memory)
    return tone, (seen.night, seen.outcome.value, *("" if each is None else f"{each:.4g}" for each in numbers))


@functools.cache
def _scripts() -> dict[str, bytes]:
    """Return the scripts of the pages, by their file names."""
    assets = [(document.PACKAGE, "uplot.min.js"), (document.PACKAGE, "shared.js"), (PACKAGE, "history.js")]
    texts = {name: document.asset(package, name).encode() for package, name in assets}
    # Another text has another name, because a browser caches a file by its name.
    return {f"assets/{hashlib.sha256(text).hexdigest()[:12]}-{name}": text for name, text in texts.items()}


@functools.cache
def _assets() -> dict[str, Any]:
    names = [(document.PACKAGE, "uplot.min.css"), (document.PACKAGE, "page.css"), (PACKAGE, "history.css")]
    sheets = [document.asset(package, name) for package, name in names]
    policy = document.content_policy(sheets, []).replace("script-src ;", "script-src 'self';")
    return {"styles": [*map(Markup, sheets)], "scripts": [*map(Markup, _scripts())], "policy": Markup(policy)}
