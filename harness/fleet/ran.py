"""Verdicts of many nights as arrays: the cases that ran in each run on each device, and the cases whose durations rose.

There is one bit per case and run, so that reports on many nights need not read verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.fleet.timeline import END_RUNS, LEAST_RUNS, SLOWER, SLOWER_SECONDS, STEADY, WINDOW

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: SQL for the numbers of runs whose cases are in reports. Its one value is the number of nights.
RECENT = "SELECT run FROM run WHERE night > (SELECT max(night) FROM run) - INTERVAL (?) DAY"


@dataclass(frozen=True, slots=True)
class Ran:
    """One row per run and device, in the order of the begin of the runs. `device`: its number; 0 for none.

    `bits`: a row of bytes for each; the highest bit of the first byte is the case with the number 0.
    """

    runs: Any
    devices: Any
    bits: Any

    def columns(self, cases: Sequence[int]) -> Any:
        """Return, for each row, whether it ran each of these cases: an array of booleans."""
        numbers = np.asarray(cases, dtype=np.int64)
        if not len(self.runs) or not len(numbers):
            return np.zeros((len(self.runs), len(numbers)), dtype=bool)
        place, bit = numbers >> 3, 7 - (numbers & 7)
        stored = place < self.bits.shape[1]
        bits = self.bits[:, np.where(stored, place, 0)] >> bit.astype(np.uint8) & 1
        return (bits == 1) & stored

    def by_run(self) -> Ran:
        """Return one row per run, for all devices together."""
        if not len(self.runs):
            return self
        # The rows of a run are adjacent.
        starts = np.flatnonzero(np.r_[True, self.runs[1:] != self.runs[:-1]])
        bits = np.bitwise_or.reduceat(self.bits, starts, axis=0)
        return Ran(self.runs[starts], np.zeros(len(starts), dtype=np.int64), bits)

    def select(self, wanted: Any) -> Ran:
        """Return some of the rows. `wanted`: an array of booleans or of positions."""
        return Ran(self.runs[wanted], self.devices[wanted], self.bits[wanted])


def read_ran(database: DuckDBPyConnection, nights: int) -> Ran:
    """Return the cases that ran in the last nights."""
    return _read(database, RECENT, [nights])


def read_ran_of(database: DuckDBPyConnection, runs: Sequence[int]) -> Ran:
    """Return the cases that ran in these runs."""
    return _read(database, "SELECT unnest(?)", [list(runs)])


def _read(database: DuckDBPyConnection, runs: str, values: Sequence[object]) -> Ran:
    rows = database.execute(
        "SELECT run, coalesce(device, 0), n.cases::BLOB FROM ran n JOIN run USING (run) "
        f"WHERE run IN ({runs}) ORDER BY begun, run, device",
        list(values),
    ).fetchall()
    width = max((len(bits) for _, _, bits in rows), default=0)
    packed = np.frombuffer(b"".join(bits.ljust(width, b"\0") for _, _, bits in rows), dtype=np.uint8)
    of_run = np.array([run for run, _, _ in rows], dtype=np.int64)
    devices = np.array([device for _, device, _ in rows], dtype=np.int64)
    return Ran(of_run, devices, packed.reshape(len(rows), width))


def last_runs(ran: Ran, cases: Sequence[int]) -> dict[int, int]:
    """Return the last run that ran each of these cases. Cases that no run ran are left out."""
    there = ran.columns(cases)
    last = {}
    for place, case in enumerate(cases):
        rows = np.flatnonzero(there[:, place])
        if len(rows):
            last[case] = int(ran.runs[rows[-1]])
    return last


@dataclass(frozen=True, slots=True)
class Spells:
    """Counts per case.

    They are the most short spells of bad results in one lane, how often a spell ended, and how often the case ran.
    """

    most: Any
    ended: Any
    ran: Any


def count_spells(ran: Any, bad: Any, lanes: Sequence[str]) -> Spells:
    """Return the spells of bad results per case. A spell of `STEADY` runs is not short.

    `ran`, `bad`: arrays with one row per run, in order, and one column per case. `lanes`: the lane of each row.
    """
    cases = ran.shape[1]
    ended, number = (np.zeros(cases, dtype=np.int64) for _ in range(2))
    lengths = {lane: np.zeros(cases, dtype=np.int64) for lane in lanes}
    short = {lane: np.zeros(cases, dtype=np.int64) for lane in lanes}
    for row, lane in enumerate(lanes):
        length, ran_now, bad_now = lengths[lane], ran[row], ran[row] & bad[row]
        ended += ran_now & ~bad_now & (length > 0)
        number += ran_now
        length[ran_now & ~bad_now] = 0
        length += bad_now
        short[lane] += bad_now & (length == 1)
        short[lane] -= bad_now & (length == STEADY)
    return Spells(np.max([*short.values(), np.zeros(cases, dtype=np.int64)], axis=0), ended, number)


def places(values: Sequence[int]) -> Mapping[int, int]:
    """Return the position of each value."""
    return {int(value): place for place, value in enumerate(values)}


def find_rises(database: DuckDBPyConnection, lanes: Mapping[str, Sequence[int]], most: int) -> list[tuple[str, int]]:
    """Return the lanes and cases whose median rose most. `lanes`: the runs of each, in order.

    Lanes with fewer than `LEAST_RUNS` runs are left out, because they have no trend.
    """
    slots: dict[int, tuple[int, int, int]] = {}
    for place, runs in enumerate(lanes.values()):
        window = runs[-WINDOW:] if len(runs) >= LEAST_RUNS else []
        slots |= {run: (place, 0, slot) for slot, run in enumerate(window[:END_RUNS])}
        slots |= {run: (place, 1, slot) for slot, run in enumerate(window[-END_RUNS:])}
    if not slots:
        return []
    columns = database.execute(
        'SELECT run, "case", seconds FROM verdict WHERE run BETWEEN ? AND ? AND run IN (SELECT unnest(?)) '
        "AND seconds IS NOT NULL",
        [min(slots), max(slots), list(slots)],
    ).fetchnumpy()
    of_run, cases = columns["run"], columns["case"]
    if not len(of_run):
        return []
    values = np.full((len(lanes), 2, END_RUNS, int(cases.max()) + 1), np.nan, dtype=np.float32)
    slot_of = np.zeros((max(slots) + 1, 3), dtype=np.int64)
    for run, slot in slots.items():
        slot_of[run] = slot
    values[(*slot_of[of_run].T, cases)] = columns["seconds"]
    early, late = median_of_known(values, axis=2).transpose(1, 0, 2)
    with np.errstate(invalid="ignore"):
        rose = (late > SLOWER * early) & (late > early + SLOWER_SECONDS)
    risen = sorted(np.argwhere(rose).tolist(), key=lambda at: float(early[tuple(at)] - late[tuple(at)]))
    names = list(lanes)
    return [(names[lane], case) for lane, case in risen[:most]]


def median_of_known(values: Any, axis: int) -> Any:
    """Return the medians without NaN; NaN if there are only NaN. `numpy.nanmedian` takes seconds for this."""
    ordered = np.sort(values, axis=axis)  # NaN comes last
    number = np.expand_dims((~np.isnan(ordered)).sum(axis=axis), axis)
    low = np.take_along_axis(ordered, np.maximum(number - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(number // 2, ordered.shape[axis] - 1), axis)
    return ((low + high) / 2).squeeze(axis)
