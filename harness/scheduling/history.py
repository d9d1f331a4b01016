"""Durations of cases in earlier runs, and estimates for the next run. Pure functions, and the history file."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.core.atomic import write_atomically
from harness.core.caseid import function_of
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.file_kind import FileKind
from harness.journal.ledger import Ledger
from harness.scheduling.slow_files import SlowFiles

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
