"""The verdict over time for sequences of results, one letter per run."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from harness.core.outcome import Outcome
from harness.fleet.timeline import Observation, VerdictTrend, slower, story

LETTERS = {
    ".": Outcome.PASSED,
    "X": Outcome.FAILED,
    "f": Outcome.FLAKY,
    "g": Outcome.GATED,
    "s": Outcome.SKIPPED,
    "w": Outcome.WAIVED,
    "n": Outcome.NOT_RUN,
    "c": Outcome.CRASHED,
}


def observed(results: str, devices: str = "") -> list[Observation]:
    first = date(2026, 1, 1)
    return [
        Observation(place, first + timedelta(days=place), LETTERS[letter], devices[place : place + 1])
        for place, letter in enumerate(results)
    ]


@pytest.mark.parametrize(
    ("results", "kind", "since", "before"),
    [
        ("", VerdictTrend.NOT_RUN, None, None),
        ("ggg", VerdictTrend.NOT_RUN, None, None),
        (".....", VerdictTrend.GREEN, 0, None),
        ("...XX", VerdictTrend.REGRESSED, 3, 2),
        ("....X", VerdictTrend.REGRESSED, 4, 3),
        ("...Xc", VerdictTrend.REGRESSED, 3, 2),
        ("XXXX", VerdictTrend.ALWAYS_RED, 0, None),
        ("..XXX..", VerdictTrend.FIXED, 5, 4),
        ("XX..", VerdictTrend.FIXED, 2, 1),
        (".XXX..XXXX..", VerdictTrend.FIXED, 10, 9),  # two defects, both fixed
        (".XXX...X", VerdictTrend.REGRESSED, 7, 6),
        ("..X..X..", VerdictTrend.FLAKY, 6, 5),
        ("..X...", VerdictTrend.FLAKY, 3, 2),
        ("..f...", VerdictTrend.FLAKY, 3, 2),
        (".X.X", VerdictTrend.FLAKY, 3, 2),
        (".X.XXX", VerdictTrend.REGRESSED, 3, 2),
        ("...gg", VerdictTrend.GATED, 3, 2),
        ("..gXX", VerdictTrend.REGRESSED, 3, 1),
        ("..XXg", VerdictTrend.GATED, 4, 3),
        (".ww", VerdictTrend.GREEN, 0, None),
        ("X" + "." * 40, VerdictTrend.GREEN, 1, 0),
    ],
)
def test_the_verdict_over_time(results: str, kind: VerdictTrend, since: int | None, before: int | None) -> None:
    found = story(observed(results))
    assert (found.kind, found.since, found.before) == (kind, since, before)


def test_a_rate_has_an_interval() -> None:
    found = story(observed("..X..X...."))
    assert (found.bad, found.ran, found.rate) == (2, 10, 0.2)
    assert found.interval == pytest.approx((0.0567, 0.5098), abs=1e-4)


@pytest.mark.parametrize(
    ("results", "devices", "device"),
    [
        ("X.X.X.X.X.", "abababacac", "a"),
        ("X.........", "abababacac", ""),  # one failure is not evidence
        ("XXXX......", "abababacac", ""),
        ("XX.XX.X.X...................", "aaaaaaaaaabbbbbbbbbbbbbbbbbb", "a"),  # that sometimes passes
        ("X.X.X.X.X.", "a-a-a-a-a-".replace("-", " "), "a"),
        ("XXXXXXXXXX", "abababacac", ""),
        ("X.X.X.X.X.", "aaaaaaaaaa", ""),  # there is no other device
    ],
)
def test_a_flake_of_one_device_is_its_own(results: str, devices: str, device: str) -> None:
    assert story(observed(results, devices)).device == device


def test_a_lasting_rise_is_slower_and_one_slow_night_is_not() -> None:
    steady = [1.0 + 0.001 * (place % 7) for place in range(30)]
    assert slower(steady) is None
    spike = [*steady]
    spike[-1] = 50.0
    assert slower(spike) is None
    risen = [value if place < 15 else value * 1.5 for place, value in enumerate(steady)]
    found = slower(risen)
    assert found is not None
    assert (round(found.before, 1), round(found.after, 1)) == (1.0, 1.5)
    assert slower(risen[-9:]) is None
