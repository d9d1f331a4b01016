"""The verdict over time of sequences of results, one letter per run."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from harness.core.outcome import Outcome
from harness.tools.history.timeline import Kind, Observation, slower, story

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
        ("", Kind.NOT_RUN, None, None),
        ("ggg", Kind.NOT_RUN, None, None),
        (".....", Kind.GREEN, 0, None),
        ("...XX", Kind.REGRESSED, 3, 2),
        ("....X", Kind.REGRESSED, 4, 3),
        ("...Xc", Kind.REGRESSED, 3, 2),
        ("XXXX", Kind.ALWAYS_RED, 0, None),
        ("..XXX..", Kind.FIXED, 5, 4),
        ("XX..", Kind.FIXED, 2, 1),
        (".XXX..XXXX..", Kind.FIXED, 10, 9),  # two defects, both mended
        (".XXX...X", Kind.REGRESSED, 7, 6),
        ("..X..X..", Kind.FLAKY, 6, 5),
        ("..X...", Kind.FLAKY, 3, 2),
        ("..f...", Kind.FLAKY, 3, 2),
        (".X.X", Kind.FLAKY, 3, 2),
        (".X.XXX", Kind.REGRESSED, 3, 2),
        ("...gg", Kind.GATED, 3, 2),
        ("..gXX", Kind.REGRESSED, 3, 1),
        ("..XXg", Kind.GATED, 4, 3),
        (".ww", Kind.GREEN, 0, None),
        ("X" + "." * 40, Kind.GREEN, 1, 0),
    ],
)
def test_the_verdict_over_time(results: str, kind: Kind, since: int | None, before: int | None) -> None:
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
        ("X.........", "abababacac", ""),  # once is no evidence
        ("XXXX......", "abababacac", ""),
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
