"""Static pages of a history in a folder: pages of recent failures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from harness.core.atomic import write_atomically
from harness.core.errors import convert_to_write_error
from harness.fleet import front
from harness.fleet.answers import NIGHTS, Answers, HistoryFailure
from harness.fleet.pages import Links, Pages, page_file_name, scripts
from harness.fleet.tables import HistoryError

#: Maximum pages of each kind. Those with the latest failures have pages.
MOST_CASES = 400
MOST_GROUPS = 300
MOST_RUNS = 200
MOST_DEVICES = 300
#: Nights whose runs have pages.
RUN_NIGHTS = 14
#: The file with the names of the pages of an export.
MARKER = ".history-pages.json"


def export_site(answers: Answers, out: Path) -> int:
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


def pages(answers: Answers, out: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file: its name and its bytes. `out`: the folder, for links to the reports of runs."""
    yield from ((name, text.encode()) for name, text in scripts().items())
    yield from _Site(answers, out).pages()


class _Site:
    """Decides which pages to make."""

    def __init__(self, answers: Answers, out: Path) -> None:
        self._answers = answers
        self._out = out
        self._front = front.front(answers)
        since = self._front.night - timedelta(days=NIGHTS)
        self._groups = [group for group in answers.groups(only_open=False, most=MOST_GROUPS) if group.last > since]
        self._failures = answers.recent_failures(since)
        devices = [suspicion.device for suspicion in self._front.suspicions][:MOST_DEVICES]
        cases = dict.fromkeys(
            [
                *(group.case for group in self._groups),
                *(flaky[0] for flaky in self._front.flaky),
                *(slow.case for slow in self._front.slow),
                *(failure.case for failure in self._failures),
            ]
        )
        runs = answers.runs
        late = self._front.night - timedelta(days=RUN_NIGHTS)
        paged = [number for number, run in runs.items() if run["night"] > late][-MOST_RUNS:]
        paged += [lane.run["run"] for lane in self._front.lanes]
        paged += [
            number
            for group in self._groups
            for onset in group.onsets
            for number in (onset.before, onset.since)
            if number
        ]
        self._links = Links(
            cases=frozenset(list(cases)[:MOST_CASES]),
            groups=frozenset(group.key for group in self._groups),
            devices=frozenset(devices),
            runs={number: run["run_id"] for number, run in runs.items()},
            paged_runs=frozenset(list(dict.fromkeys(paged))[: 2 * MOST_RUNS]),
        )
        self._pages = Pages(answers, self._front, self._links)

    def pages(self) -> Iterator[tuple[str, bytes]]:
        """Yield each page."""
        made = self._pages
        yield "index.html", made.index()
        yield "groups.html", made.groups(self._groups)
        yield "cases.html", made.cases(self._failures)
        yield "devices.html", made.devices()
        yield "runs.html", made.runs()
        of_group, of_case = self._by("group"), self._by("case")
        for group in self._groups:
            yield page_file_name("groups", group.key), made.group(group, of_group.get(group.key, []))
        numbers = self._answers.case_numbers(sorted(self._links.cases))
        observed = self._answers.observations(numbers.values(), NIGHTS)
        for case, number in numbers.items():
            yield page_file_name("cases", case), made.case(case, observed.get(number, {}), of_case.get(case, []))
        for suspicion in self._front.suspicions:
            if suspicion.device in self._links.devices:
                yield page_file_name("devices", suspicion.device), made.device(suspicion)
        for number in sorted(self._links.paged_runs):
            run = self._answers.runs[number]
            yield page_file_name("runs", run["run_id"]), made.run(number, self._report(run))

    def _by(self, name: str) -> dict[str, list[HistoryFailure]]:
        grouped: dict[str, list[HistoryFailure]] = {}
        for failure in self._failures:
            grouped.setdefault(getattr(failure, name), []).append(failure)
        return grouped

    def _report(self, run: Mapping[str, Any]) -> Markup:
        """Return the relative address of the run's own page, if it is on this machine; otherwise ""."""
        path = Path(run["page"]) if run["page"] else None
        if path is None or not path.is_file():
            return Markup("")
        return Markup(quote(os.path.relpath(path, (self._out / "runs").resolve())))
