"""The number of nights until a fleet's bad device is found, and the number of good ones that are suspected.

    python -m benchmarks.history.suspects
    python -m benchmarks.history.suspects --devices 64 --cases 6000 --flakes 0.01 --extra 0.001 0.002 0.005 0.01

Each device runs each case once per night. Every result is bad at the rate of flakes; the bad device's rate is higher by
`--extra`. The judgement is that of the front page (`harness.fleet.answers.judged`) on the last 30 nights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from harness.fleet.answers import RECENT, judged


def fleet(
    random: np.random.Generator, *, devices: int, cases: int, nights: int, flakes: float, extra: float
) -> tuple[int | None, int, int]:
    """Return the night on which device 0 is found, and the numbers of suspected other devices and of their nights."""
    rates = np.full(devices, flakes)
    rates[0] += extra
    bad = random.binomial(cases, rates, (nights, devices))
    found: int | None = None
    alarms: set[int] = set()
    alarm_nights = 0
    for night in range(1, nights + 1):
        window = bad[max(0, night - RECENT) : night]
        seen, runs = window.sum(axis=0), (window > 0).sum(axis=0)
        # All devices run all cases, so each expects the same share of all bad results. A stratum with a bad result on
        # each device would contain no information; with 64 devices there is none.
        expected = seen.sum() / devices
        rows = [
            (str(place), "", "", int(seen[place]), expected, int(runs[place]), int(seen[place]), 0, ())
            for place in range(devices)
        ]
        suspected = {int(each.device) for each in judged(rows) if each.suspicious}
        if extra and 0 in suspected:
            found = found or night
        others = suspected - {0} if extra else suspected
        alarms |= others
        alarm_nights += len(others)
    return found, len(alarms), alarm_nights


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--nights", type=int, default=90)
    parser.add_argument("--flakes", type=float, default=0.01)
    parser.add_argument("--extra", type=float, nargs="*", default=[0.0, 0.001, 0.002, 0.003, 0.005, 0.01])
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--output", type=Path)
    wanted = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for extra in wanted.extra:
        random = np.random.default_rng(1)
        every = [
            fleet(
                random,
                devices=wanted.devices,
                cases=wanted.cases,
                nights=wanted.nights,
                flakes=wanted.flakes,
                extra=extra,
            )
            for _ in range(wanted.fleets)
        ]
        nights = sorted(night if night is not None else wanted.nights + 1 for night, _, _ in every)
        rows.append(
            {
                "extra": extra,
                "found": sum(night is not None for night, _, _ in every),
                "fleets": wanted.fleets,
                "median_night": nights[len(nights) // 2],
                "last_night": nights[-1],
                "good_devices_suspected": sum(alarms for _, alarms, _ in every),
                "alarm_nights": sum(each for _, _, each in every),
            }
        )
        print(json.dumps(rows[-1]))
    if wanted.output:
        wanted.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
