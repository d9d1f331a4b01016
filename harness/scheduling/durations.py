"""The durations of cases that a run knows, and those that it keeps for the next run, in history files."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from filelock import FileLock
from pydantic import Field

from harness.core.atomic import write_atomically
from harness.core.caseid import function_of
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.file_kind import FileKind
from harness.core.models import StrictModel
from harness.devices.device import Inventory
from harness.gating import configfile
from harness.journal.ledger import Ledger

_RESULTS = "results"


@dataclass(slots=True)
class Durations:
    """The history of a run. `file`: where the run keeps its own durations; None if it does not.

    `notes`: lines for people above the run, `remarks`: lines below it.
    """

    history: DurationHistory
    device: str
    file: Path | None
    given: tuple[Path, ...] = ()
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Mapping[str, Any], base: Path, configs: Path, inventory: Inventory) -> Durations:
        """Return the history from ``--history``, else from the file beside the run directories.

        `base`: the working folder.

        The folder `configs` has estimates for all other cases; see `slow_files`. Only a run in ``results/`` keeps its
        durations. Raise pytest.UsageError.
        """
        path = base / _RESULTS / FILE_NAME
        own = settings["results_dir"] is None and settings["resume"] is None
        device = ", ".join(sorted({usable.name for usable in inventory.usable}))
        try:
            slow = load_slow_files(configs)
        except HarnessError as error:
            raise pytest.UsageError(str(error)) from None
        durations = cls(DurationHistory(slow=slow), device, path if own else None, settings["history"])
        if durations.given:
            try:
                earlier = DurationHistory.of_runs(base / folder for folder in durations.given)
            except HarnessError as error:
                raise pytest.UsageError(f"--history={durations._names}: {error}") from None
            durations.history = replace(earlier, slow=slow)
            return durations
        try:
            durations.history = replace(DurationHistory.read(path, device), slow=slow)
        except DurationHistoryError as error:
            durations.notes.append(f"no durations are known: {error}")
            durations.file = None
        return durations

    @property
    def _names(self) -> str:
        return repr(",".join(map(str, self.given)))

    def expected(self, ids: Sequence[str], limits: Mapping[str, float], limit: float) -> list[float]:
        """Return the expected seconds of each case, see `DurationHistory.expected`.

        Add a note if the history is of other cases.
        """
        seconds = self.history.seconds
        if self.given and ids and not any(case in seconds for case in ids):
            self.remarks.append(
                f"--history={self._names}: none of its {len(seconds)} cases is in this run: it comes from another tree"
            )
        return self.history.expected(ids, limits, limit)

    def keep(self, ledger: Ledger) -> None:
        """Keep the durations of this run for later runs. A failure to do so does not fail the run."""
        if self.file is None:
            return
        try:
            DurationHistory.of_ledger(ledger).keep(self.file, self.device)
        except HarnessError as error:
            self.remarks.append(f"the durations of this run are not kept: {error}")


# The history file: durations of cases in earlier runs, and estimates for the next run

#: The file beside the run directories.
FILE_NAME = "history.json"
_SCHEMA = 1
#: The estimate, in seconds, for a case without any information.
_UNKNOWN = 1.0
#: New durations count as much as all older ones together, so the estimate of a case that became slow adapts quickly.
_NEW = 0.5


class DurationHistoryError(HarnessError):
    """A file is not a history."""


_KIND = FileKind("history of durations", "remove it, and the next run makes a new one", DurationHistoryError, 256 << 20)


@dataclass(frozen=True, slots=True)
class DurationHistory:
    """Durations of cases in seconds, by id. `slow`: estimates for test files that are in no earlier run."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    slow: SlowFiles | None = None

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> DurationHistory:
        """Return the durations of one run: for each case that ran, the mean of its repetitions, retries included."""
        return cls(
            {
                verdict.case: round(verdict.duration / max(1, sum(finish.final for finish in verdict.finishes)), 3)
                for verdict in ledger.verdicts
                if verdict.ran
            }
        )

    @classmethod
    def of_runs(cls, run_dirs: Iterable[Path]) -> DurationHistory:
        """Return the durations of several runs: the median per case. Raise JournalError if a folder has no run."""
        by_case: dict[str, list[float]] = defaultdict(list)
        for run_dir in run_dirs:
            ledger = Ledger.of(run_dir)
            for case, seconds in cls.of_ledger(ledger).seconds.items():
                by_case[case].append(seconds)
        return cls({case: statistics.median(values) for case, values in by_case.items()})

    @classmethod
    def read(cls, path: Path, device: str) -> DurationHistory:
        """Return the durations on this kind of device in a file; none without a file. Raise DurationHistoryError."""
        return cls(_read(path).get(device, {}))

    def keep(self, path: Path, device: str) -> None:
        """Add these durations to a file. Several runs may do so at the same time.

        Raise DurationHistoryError if the file is not a history, WriteError if it cannot be written.
        """
        with contextlib.ExitStack() as held:
            # Without file locks, the later of two runs that end at the same time wins.
            with convert_to_write_error(f"beside {str(path)!r}"), contextlib.suppress(NotImplementedError):
                held.enter_context(FileLock(path.with_name(f".{path.name}.lock")))
            self._keep(path, device)

    def _keep(self, path: Path, device: str) -> None:
        stored = _read(path)
        before = stored.get(device, {})
        stored[device] = {**before, **self._mixed(before)}
        text = json.dumps({"schema": _SCHEMA, "seconds": stored}, separators=(",", ":"))
        write_atomically(path, text.encode("ascii") + b"\n")

    def _mixed(self, before: Mapping[str, float]) -> dict[str, float]:
        return {
            case: round(_NEW * seconds + (1 - _NEW) * before.get(case, seconds), 3)
            for case, seconds in self.seconds.items()
        }

    def expected(self, ids: Sequence[str], limits: Mapping[str, float], limit: float) -> list[float]:
        """Return the expected seconds of each case. `limits`: the time limits of cases that have their own.

        The estimate is the earlier duration of the case, but at least the average of its file, because a different case
        compiles the shared code in each run. A case without history gets the estimate of similar ones: other parameters
        of the same test, else the same file. Otherwise the estimate comes from `slow`, or from the time limit of the
        case, compared with the usual `limit`.
        """
        by_test, by_file = _means(self.seconds, function_of), _means(self.seconds, _file)
        estimates = {case: max(seconds, by_file[_file(case)]) for case, seconds in self.seconds.items()}
        unknown = _UNKNOWN
        if self.slow is not None:
            by_file = {**self.slow.files, **by_file}
            unknown = self.slow.other
        # A user may have run the few slow cases of a history by name.
        is_representative = self.slow is None or 2 * len(estimates.keys() & set(ids)) > len(ids)
        usual = statistics.median(self.seconds.values()) if self.seconds and is_representative else unknown

        def guess(case: str) -> float:
            like = by_test.get(function_of(case), by_file.get(_file(case)))
            return usual * limits.get(case, limit) / limit if like is None else like

        return [estimates[case] if case in estimates else guess(case) for case in ids]


def _means(seconds: Mapping[str, float], key: Any) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for case, value in seconds.items():
        groups[key(case)].append(value)
    return {name: statistics.fmean(values) for name, values in groups.items()}


def _file(case: str) -> str:
    return case.partition("::")[0]


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return the seconds in a file, by device and case. Raise DurationHistoryError."""
    data = _KIND.read_if_exists(path)
    if data is None:
        return {}
    try:
        contents = json.loads(data)
    except (ValueError, RecursionError):
        contents = None
    seconds = contents.get("seconds") if isinstance(contents, dict) and contents.get("schema") == _SCHEMA else None
    if not isinstance(seconds, dict) or not all(_is_seconds(cases) for cases in seconds.values()):
        raise DurationHistoryError(
            f"{str(path)!r} is not a history of durations: remove it, and the next run makes a new one"
        )
    return seconds


def _is_seconds(cases: object) -> bool:
    return isinstance(cases, dict) and all(
        isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0 for seconds in cases.values()
    )


# Durations of the cases of slow test files, measured by the suites' authors: ``configs/durations.yaml``.
#
# A run without history uses them to decide which cases to begin first. The figures come from another machine: only
# their ratios matter.

SLOW_FILES = "durations.yaml"
#: Minimum duration, in seconds, of a listed test file.
LISTED = 0.5
_DIGITS = 2
_HEADER = f"""\
# How long one case of these test files is expected to take, in seconds: the mean of its longest and its average case.
# A run without a history of its own begins with the longest. `other`: a case of any other file.
# Made from run directories: harness durations RUN_DIR... -o configs/{SLOW_FILES}
"""

Positive = Annotated[float, Field(gt=0)]


class SlowFiles(StrictModel):
    """The estimates for test files. `files`: the seconds of a case of each slow file.

    `other`: the seconds of a case of any other file.
    """

    other: Positive
    files: dict[Annotated[str, Field(min_length=1)], Positive] = Field(default_factory=dict)


def load_slow_files(configs: Path) -> SlowFiles | None:
    """Return the file in the folder `configs`; None if there is none. Raise ConfigError."""
    path = configs / SLOW_FILES
    return configfile.load_config(path, SlowFiles).value if path.is_file() else None


def measured_slow_files(runs: Sequence[Mapping[str, float]]) -> SlowFiles:
    """Return the slow files of several runs, from the seconds of each case in each run.

    There must be at least one case.

    The first case that compiles shared code takes the time for all, and is a different case in each order. Therefore
    the figure of a file is the mean of its longest and its average case, and the longest time in any run counts for
    each case.
    """
    longest: dict[str, float] = {}
    for run in runs:
        for case, seconds in run.items():
            longest[case] = max(seconds, longest.get(case, 0.0))
    by_file: dict[str, list[float]] = defaultdict(list)
    for case, seconds in longest.items():
        by_file[case.partition("::")[0]].append(seconds)
    figures = {name: (max(values) + statistics.fmean(values)) / 2 for name, values in by_file.items()}
    slow = {name: _rounded(figures[name]) for name in sorted(figures) if figures[name] >= LISTED}
    others = [seconds for name, values in by_file.items() if name not in slow for seconds in values]
    return SlowFiles(other=_rounded(statistics.fmean(others)) if others else LISTED, files=slow)


def slow_files_text(slow: SlowFiles) -> str:
    """Return the contents of the file."""
    return _HEADER + yaml.safe_dump(slow.model_dump(), sort_keys=False, allow_unicode=True, width=1000)


def _rounded(seconds: float) -> float:
    return max(float(f"{seconds:.{_DIGITS}g}"), 0.001)
