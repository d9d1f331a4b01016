"""Suspicion of a device: its bad results compared with those of its siblings on the same cases in the same nights.

A stratum is one case in one night, on devices of one kind with one driver and one torch. The expected share of a device
in the bad results of a stratum is its share of all results there. Failures everywhere, or since a driver or a commit,
are expected equally of all devices, and make none suspicious. The number of bad results beyond the expectation is
tested (a Poisson bound of the Mantel-Haenszel statistic), and corrected for the number of devices (Holm).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from harness.fleet.ran import Ran, read_ran_of
from harness.fleet.statistics import holm, poisson_tail

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The nights that are evaluated.
NIGHTS = 30
#: A device is suspicious if the probability that any device looks like this by chance is below this.
SIGNIFICANCE = 0.01
#: Least number of runs with a bad result, because one broken night does not mean a broken device.
LEAST_RUNS = 2

_BAD = """
    SELECT run, "case", device FROM trouble JOIN outcome_name o USING (outcome)
    WHERE (o.red AND o.ran OR o.name = 'flaky') AND device IS NOT NULL AND run IN (SELECT unnest(?))
"""
_PRESENT = """
    WITH present AS (SELECT DISTINCT device FROM run_device WHERE run IN (SELECT unnest($1))),
    sick AS (
        SELECT device, count(*) AS events, list(DISTINCT xid ORDER BY xid) FILTER (xid > 0) AS xids
        FROM health_event WHERE run IN (SELECT unnest($1)) GROUP BY device
    )
    SELECT device, key, name, host, coalesce(events, 0), coalesce(xids, [])
    FROM present JOIN device_name USING (device) LEFT JOIN sick USING (device) ORDER BY key
"""


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


def suspicions(database: DuckDBPyConnection, nights: int = NIGHTS, until: object = None) -> list[DeviceSuspicion]:
    """Return every device of the last nights, the most suspicious first. `until`: the last night that counts."""
    (last,) = database.execute("SELECT max(night) FROM run WHERE ? OR night <= ?", [until is None, until]).fetchall()[0]
    window = database.execute(
        "SELECT run, night, driver, torch FROM run WHERE night <= ? AND night > ?::DATE - INTERVAL (?) DAY",
        [last, last, nights],
    ).fetchall()
    facts = {run: tuple(rest) for run, *rest in window}
    runs = list(facts)
    present = database.execute(_PRESENT, [runs]).fetchall()
    models = {device: name for device, _, name, *_ in present}
    counts = _counts(read_ran_of(database, runs), facts, models, database.execute(_BAD, [runs]).fetchall())
    rows = []
    for device, key, name, host, events, xids in present:
        count = counts.get(device, _Count())
        rows.append(
            (key, name, host, count.bad, count.expected, len(count.runs), len(count.cases), events, tuple(xids))
        )
    return judged(rows)


@dataclass(slots=True)
class _Count:
    """The bad results of a device in strata that it shares with others, and their expected number."""

    bad: int = 0
    expected: float = 0.0
    runs: set[int] = field(default_factory=set)
    cases: set[int] = field(default_factory=set)


def _counts(
    ran: Ran,
    facts: Mapping[int, tuple[object, ...]],
    models: Mapping[int, str],
    bad: Sequence[tuple[int, int, int]],
) -> dict[int, _Count]:
    """Return the counts by device.

    `facts`: by run, the facts that must be equal in a stratum; `models`: names of devices.
    """
    results: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
    for run, case, device in bad:
        results.setdefault((*facts[run], models.get(device)), []).append((run, case, device))
    rows: dict[tuple[object, ...], list[int]] = {}
    for place, (run, device) in enumerate(zip(ran.runs.tolist(), ran.devices.tolist(), strict=True)):
        if device in models:
            rows.setdefault((*facts[run], models[device]), []).append(place)
    counts: dict[int, _Count] = {}
    for siblings, own in results.items():
        cases = sorted({case for _, case, _ in own})
        number = Counter(case for _, case, _ in own)
        chosen = ran.select(rows.get(siblings, []))
        devices = sorted({*chosen.devices.tolist()})
        there = chosen.columns(cases)
        by_device = np.array([there[chosen.devices == device].sum(axis=0) for device in devices])
        if len(devices) < 2:
            continue
        whole = by_device.sum(axis=0)
        shared = (by_device > 0).sum(axis=0) > 1
        share = np.where(shared, by_device / np.maximum(whole, 1), 0.0)
        expected = share @ np.array([number[case] for case in cases])
        for device, amount in zip(devices, expected.tolist(), strict=True):
            counts.setdefault(device, _Count()).expected += amount
        counted = {case for case, is_shared in zip(cases, shared.tolist(), strict=True) if is_shared}
        for run, case, device in own:
            if case in counted:
                count = counts.setdefault(device, _Count())
                count.bad += 1
                count.runs.add(run)
                count.cases.add(case)
    return counts


def judged(rows: Sequence[tuple[str, str, str, int, float, int, int, int, Sequence[int]]]) -> list[DeviceSuspicion]:
    """Return the suspicions of these devices. The correction does not count devices without siblings."""
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
