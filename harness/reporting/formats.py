"""Formats of reports: one signature for those of this package and for those that other packages register.

A format is a function of the results and of the facts of environment.json (None if that is unreadable) that yields the
bytes of a report. A package registers its own with an entry point in the group `GROUP`; docs/reports.md has an example.
"""

from __future__ import annotations

import importlib.metadata
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.atomic import open_atomically
from harness.core.errors import HarnessError, WriteError
from harness.core.text import list_first, single_line
from harness.journal import environment
from harness.journal.ledger import Results
from harness.reporting import github, prometheus, report_json

#: The group of entry points. The name of each is that of its format.
GROUP = "gpu_conformance_harness.reports"
Facts = Mapping[str, Any] | None
ReportFormat = Callable[[Results, Facts], Iterable[bytes]]


_OWN: Mapping[str, ReportFormat] = {
    "json": report_json.report_json_chunks,
    "markdown": github.job_summary,
    "prometheus": prometheus.prometheus_text,
}
_ENDINGS = {"markdown": "md", "prometheus": "prom"}


class ReportFormatError(HarnessError):
    """There is no such format, or its package cannot be loaded."""


def format_names() -> list[str]:
    """Return the names of all formats."""
    others = {point.name for point in importlib.metadata.entry_points(group=GROUP)}
    return [*_OWN, *sorted(others - {*_OWN})]


def report_format(name: str) -> ReportFormat:
    """Return a format by its name. Raise ReportFormatError."""
    if name in _OWN:
        return _OWN[name]
    points = [point for point in importlib.metadata.entry_points(group=GROUP) if point.name == name]
    if not points:
        raise ReportFormatError(
            f"there is no report format {single_line(name)!r}: expected {', '.join(format_names())}"
        )
    if len(points) > 1:
        values = list_first([point.value for point in points])
        raise ReportFormatError(f"the report format {name!r} is registered {len(points)} times ({values}): keep one")
    try:
        found = points[0].load()
    except Exception as error:  # noqa: BLE001 - of another package
        raise ReportFormatError(
            f"the report format {name!r} cannot be loaded from {points[0].value}: {error!r}"
        ) from None
    if not callable(found):
        raise ReportFormatError(
            f"the report format {name!r} ({points[0].value}) is {found!r}, expected a function of results and facts"
        )
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class WantedReport:
    """A value of ``--report``: the name of a format, and the file; None for the usual one in the run directory."""

    format: str
    file: Path | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return a report from ``FORMAT`` or ``FORMAT:FILE``. Raise ReportFormatError if there is no such format."""
        name, _, file = text.partition(":")
        report_format(name)
        if name == "prometheus" and file and not file.endswith(".prom"):
            raise ReportFormatError(f"{file!r}: the textfile collector reads only files whose name ends with .prom")
        return cls(name, Path(file) if file else None)

    def path(self, run_dir: Path, base: Path) -> Path:
        """Return the file to write. `base`: the folder that relative paths start from."""
        if self.file is None:
            return run_dir / f"report.{_ENDINGS.get(self.format, self.format)}"
        return base / self.file


def write_reports(
    wanted: Sequence[str], results: Results, *, run_dir: Path, base: Path, note: Callable[[str], None]
) -> None:
    """Write the reports that ``--report`` asks for. Raise WriteError if a file cannot be written.

    An error of a format is passed to `note`, and does not change the verdict of the run.
    """
    facts = None
    if wanted:
        try:
            facts = environment.read_environment(run_dir)
        except environment.EnvironmentFileError as error:
            note(f"the reports omit {environment.FILE_NAME}: {error}")
    for text in wanted:
        report = WantedReport.parse(text)
        path = report.path(run_dir, base)
        try:
            with open_atomically(path) as file:
                file.writelines(report_format(report.format)(results, facts))
        except WriteError:
            raise
        except Exception as error:  # noqa: BLE001 - of another package
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            note(f"{path} was not written, an error of the format {report.format!r}: {error!r} in {where}")
