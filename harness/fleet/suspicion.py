"""Suspicion of a device: its bad results compared with those of its siblings on the same cases in the same nights.

A stratum is one case in one night, on devices of one kind with one driver and one torch. The expected share of a device
in the bad results of a stratum is its share of all results there. Failures everywhere, or since a driver or a commit,
are expected equally of all devices, and make none suspicious. The number of bad results beyond the expectation is
tested (a Poisson bound of the Mantel-Haenszel statistic), and corrected for the number of devices (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.fleet import questions
from harness.fleet.statistics import holm, poisson_tail

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The nights that are evaluated.
NIGHTS = 30
#: A device is suspicious if the probability that any device looks like this by chance is below this.
SIGNIFICANCE = 0.01
#: Least number of runs with a bad result, because one broken night does not mean a broken device.
LEAST_RUNS = 2


@dataclass(frozen=True, slots=True)
class DeviceSuspicion:
    """A device compared with its siblings.

    `bad`: its bad results in strata with siblings; `expected`: its share of all bad results there. `chance`: the
    probability of this many, corrected for the number of devices. `runs`, `cases`: the numbers of runs and cases with
    these bad results. `events`: how often it was sick or drained; `xids`: NVIDIA's numbers of its errors.
    """

    device: str
    name: str
    host: str
    bad: int
    expected: float
    chance: float
    runs: int
    cases: int
    events: int
    xids: tuple[int, ...]

    @property
    def suspicious(self) -> bool:
        return self.chance <= SIGNIFICANCE and self.runs >= LEAST_RUNS

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key: the most suspicious device comes first."""
        return (not self.suspicious, self.chance, -self.events, -self.bad)


def suspicions(database: DuckDBPyConnection) -> list[DeviceSuspicion]:
    """Return every device of the last nights, the most suspicious first."""
    return judged(database.execute(questions.SUSPICIONS, {"nights": NIGHTS}).fetchall())


def judged(rows: Sequence[tuple[Any, ...]]) -> list[DeviceSuspicion]:
    """Return the suspicions of devices. The correction does not count devices without siblings.

    `rows`: device, name, host, bad, expected, runs, cases, events and xids, as `DeviceSuspicion` has them.
    """
    tested = [row for row in rows if row[4] > 0]
    chances = dict(
        zip((row[0] for row in tested), holm([poisson_tail(row[3], float(row[4])) for row in tested]), strict=True)
    )
    listed = [
        DeviceSuspicion(
            device=device,
            name=name,
            host=host,
            bad=bad,
            expected=float(expected),
            chance=chances.get(device, 1.0),
            runs=runs,
            cases=cases,
            events=events,
            xids=tuple(xids),
        )
        for device, name, host, bad, expected, runs, cases, events, xids in rows
    ]
    return sorted(listed, key=lambda suspicion: suspicion.order)
