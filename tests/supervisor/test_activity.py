"""The journal events of a worker's activities between attempts at cases."""

from __future__ import annotations

import pytest

from harness.supervisor.activity import Activities
from tests.reporting import build
from tests.supervisor.fakes import RecordedLines


def test_activities_begin_are_updated_and_end() -> None:
    lines = RecordedLines()
    moments = iter([100.0, 107.0])
    activities = Activities(lines, "gw1", clock=lambda: next(moments))
    with activities.doing("looking") as tell:
        tell("looking: trial 1")
        with activities.doing("waiting"):
            pass
        tell("looking: trial 2")
    reported = [(line["worker"], line["what"], line.get("since")) for line in lines]
    assert reported == [
        ("gw1", "looking", 100.0),
        ("gw1", "looking: trial 1", 100.0),
        ("gw1", "waiting", 107.0),
        ("gw1", "looking: trial 1", 100.0),
        ("gw1", "looking: trial 2", 100.0),
        ("gw1", "", None),
    ]
    assert len(build.events(*lines)) == 6


def test_an_activity_that_fails_is_over() -> None:
    lines = RecordedLines()
    with pytest.raises(ZeroDivisionError), Activities(lines, "gw1").doing("dividing"):
        raise ZeroDivisionError
    assert [line["what"] for line in lines] == ["dividing", ""]
