"""Values of code under test that could break its own report. None of them costs a verdict."""

from __future__ import annotations

from tests.acceptance.conftest import MakeProject


def test_durations_are_of_the_clock_of_the_machine(make_project: MakeProject) -> None:
    project = make_project("stopped_clocks")
    for isolation in ("batch", "none"):
        result = project.run("-n0", f"--isolation={isolation}")
        assert not result.contents.damaged
        finishes = [line for line in result.lines if line["event"] == "finish"]
        assert len(finishes) >= 6
        phases = [seconds for line in finishes for seconds in line["phases"].values()]
        assert len(phases) == 3 * len(finishes)
        assert all(0 < seconds < result.seconds for seconds in phases)
        moments = [line["t"] for line in result.lines]
        assert max(moments) - min(moments) < result.seconds
