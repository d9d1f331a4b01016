"""The cases whose durations may have risen, by medians of a few runs at either end of each lane's last runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.fleet.timeline import END_RUNS, LEAST_RUNS, SLOWER, SLOWER_SECONDS, WINDOW

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


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
