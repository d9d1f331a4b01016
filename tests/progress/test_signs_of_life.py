"""The form of progress that a run shows, and the screen for it."""

from __future__ import annotations

import pytest

from harness.progress.signs_of_life import SILENCE, chosen_signs

TABLE = (True, 0.0)
LINES = (False, SILENCE)
NOTHING = (False, 0.0)


@pytest.mark.parametrize(
    ("wanted", "movable", "here", "found"),
    [
        ("auto", True, False, TABLE),
        ("auto", False, False, LINES),
        ("auto", True, True, NOTHING),
        ("auto", False, True, NOTHING),
        ("live", True, False, TABLE),
        ("live", True, True, TABLE),
        ("live", False, False, LINES),
        ("live", False, True, LINES),
        ("plain", True, False, LINES),
        ("plain", False, True, LINES),
        ("off", True, False, NOTHING),
        (0.0, True, False, NOTHING),
        (2.5, True, False, (False, 2.5)),
        (2.5, False, True, (False, 2.5)),
    ],
)
def test_what_is_shown(wanted: str | float, movable: bool, here: bool, found: tuple[bool, float]) -> None:
    assert chosen_signs(wanted, movable=movable, here=here) == found
