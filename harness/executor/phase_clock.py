"""Measures the phases of a case, because a case may stop pytest's own clock."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from harness.core.clock import monotonic, now
from harness.protocol.phase_page import PHASES
from harness.protocol.reports import PhaseTimes


class PhaseClock:
    """A plugin that writes the times of each phase into pytest's report. Other plugins may change them there."""

    def __init__(self) -> None:
        #: The phase that runs or ran last. Below: its begin, and its duration, None while it runs.
        self.when = PHASES[0]
        self._start = now()
        self._begun = monotonic()
        self._duration: float | None = None

    @property
    def times(self) -> PhaseTimes:
        """The times of the phase that ran last; up to now, if it still runs."""
        duration = monotonic() - self._begun if self._duration is None else self._duration
        return PhaseTimes(duration, self._start, self._start + duration)

    def _begin(self, when: str) -> None:
        self.when, self._duration = when, None
        self._start, self._begun = now(), monotonic()

    def _end(self) -> None:
        self._duration = monotonic() - self._begun

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._begin("setup")
        try:
            return (yield)
        finally:
            self._end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        self._begin("call")
        try:
            return (yield)
        finally:
            self._end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        self._begin("teardown")
        try:
            return (yield)
        finally:
            self._end()

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside all other wrappers, which see these times and may change them
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
        report = yield
        if not isinstance(report, pytest.TestReport):
            return report
        times = self.times
        # Only pytest measures a part of a phase, such as a subtest. The part is limited to the time of the phase so
        # far.
        is_part = self._duration is None or call.when != self.when
        if not is_part or not 0.0 <= report.duration <= times.duration:
            report.duration, report.start, report.stop = times
        return report
