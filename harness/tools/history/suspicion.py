"""Suspicion of a device: its bad results beside those of its siblings on the same cases in the same nights.

A stratum is one case in one night, on devices of one kind with one driver and one torch. Of its bad results, each
device is expected to have the share that it has of the results. What is red everywhere, or since a driver or a
commit, is expected of all devices alike, and makes none suspicious. The number of bad results beyond the expectation
is tested (a Poisson bound of the Mantel-Haenszel statistic), and corrected for the number of devices (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.tools.history.statistics import holm, poisson_tail

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Nights that are looked at.
NIGHTS = 30
#: A device is suspicious if chance makes any of them so less often than this.
SIGNIFICANCE = 0.01
#: Least number of runs with a bad result: one broken night is no broken device.
LEAST_RUNS = 2

_QUERY = """
    WITH window_run AS (
        SELECT run, night, driver, torch FROM run
        WHERE night > (SELECT max(night) FROM run WHERE ? OR night <= ?) - INTERVAL (?) DAY AND (? OR night <= ?)
    ),
    bad AS (
        SELECT t.run, t."case", t.device
        FROM trouble t JOIN outcome_name o USING (outcome)
        WHERE (o.red AND o.ran OR o.name = 'flaky') AND t.device IS NOT NULL AND t.run IN (SELECT run FROM window_run)
    ),
    bad_stratum AS (
        SELECT night, driver, torch, "case", d.name AS model, count(*) AS bad
        FROM bad JOIN window_run USING (run) JOIN device_name d USING (device) GROUP BY ALL
    ),
    member AS (
        SELECT s.night, s.driver, s.torch, s."case", s.model, s.bad, v.device, count(*) AS ran
        FROM verdict v JOIN window_run r USING (run) JOIN device_name d USING (device) JOIN bad_stratum s
            ON s.night = r.night AND s.driver = r.driver AND s.torch = r.torch AND s."case" = v."case"
                AND s.model = d.name
        WHERE v.outcome IN (SELECT outcome FROM outcome_name WHERE ran) AND v.run IN (SELECT run FROM window_run)
        GROUP BY ALL
    ),
    expected AS (
        SELECT device, sum(bad * ran / whole) AS expected
        FROM (SELECT *, sum(ran) OVER (PARTITION BY night, driver, torch, "case", model) AS whole FROM member)
        WHERE whole > ran
        GROUP BY device
    ),
    shared AS (
        SELECT night, driver, torch, "case", model FROM member GROUP BY ALL HAVING count(*) > 1
    ),
    seen AS (
        SELECT b.device, count(*) AS bad, count(DISTINCT b.run) AS runs, count(DISTINCT b."case") AS cases
        FROM bad b JOIN window_run r USING (run) JOIN device_name d USING (device) JOIN shared s
            ON s.night = r.night AND s.driver = r.driver AND s.torch = r.torch AND s."case" = b."case"
                AND s.model = d.name
        GROUP BY b.device
    ),
    present AS (
        SELECT DISTINCT device FROM run_device WHERE run IN (SELECT run FROM window_run)
    ),
    sick AS (
        SELECT device, count(*) AS events, list(DISTINCT xid ORDER BY xid) FILTER (xid > 0) AS xids
        FROM health_event WHERE run IN (SELECT run FROM window_run) GROUP BY device
    )
    SELECT d.key, d.name, d.host, coalesce(seen.bad, 0), coalesce(expected.expected, 0.0), coalesce(seen.runs, 0),
        coalesce(seen.cases, 0), coalesce(sick.events, 0), coalesce(sick.xids, [])
    FROM present JOIN device_name d USING (device) LEFT JOIN seen USING (device) LEFT JOIN expected USING (device)
        LEFT JOIN sick USING (device)
    ORDER BY d.key
"""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A device beside its siblings.

    `bad`: its bad results where siblings ran the same case; `expected`: its share of all bad results there. `chance`:
    the probability of so many, corrected for the number of devices. `runs`, `cases`: in how many the bad results are.
    `events`: how often it was sick or drained; `xids`: NVIDIA's numbers of its errors.
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


def suspicions(database: DuckDBPyConnection, nights: int = NIGHTS, until: object = None) -> list[Suspicion]:
    """Return every device of the last nights, the most suspicious first. `until`: the last night to look at."""
    always = until is None
    rows = database.execute(_QUERY, [always, until, nights, always, until]).fetchall()
    return judged(rows)


def judged(rows: Sequence[tuple[str, str, str, int, float, int, int, int, Sequence[int]]]) -> list[Suspicion]:
    """Return the suspicions of these devices. Devices without siblings take no part in the correction."""
    tested = [row for row in rows if row[4] > 0]
    chances = dict(
        zip((row[0] for row in tested), holm([poisson_tail(row[3], float(row[4])) for row in tested]), strict=True)
    )
    found = [
        Suspicion(
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
    return sorted(found, key=lambda each: each.order)
