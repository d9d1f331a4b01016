"""The durations of cases that a run knows, and those that it keeps for the next run, in history files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.devices.device import Inventory
from harness.journal.ledger import Ledger
from harness.scheduling import slow_files
from harness.scheduling.history import FILE_NAME, DurationHistory, DurationHistoryError

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
            slow = slow_files.load_slow_files(configs)
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
