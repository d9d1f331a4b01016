"""The trace that torch's compiler keeps of its work, a log that it writes for whoever listens."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

#: Torch's logger of the trace. It hands nothing on to the loggers above it.
TRACE = "torch.__trace"


class TraceLogMuted:
    """A plugin that keeps pytest from listening to the trace while a case runs.

    pytest (seen with 9.2) listens to all loggers that hand nothing on, and torch makes the trace, whatever its level,
    as soon as anything listens: a fifth of the time of cases that compile, and hundreds of lines without words in the
    report of each that fails. What torch itself adds to listen (`TORCH_TRACE`), or a case, stays.
    """

    @pytest.hookimpl(wrapper=True, trylast=True)  # within the wrappers in which pytest begins to listen
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        stop_listening()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        stop_listening()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        stop_listening()
        return (yield)


def stop_listening() -> None:
    """Take pytest's handlers off the trace, which pytest does itself at the end of the phase as well."""
    logger = logging.Logger.manager.loggerDict.get(TRACE)
    if isinstance(logger, logging.Logger):
        for handler in logger.handlers[:]:
            if type(handler).__module__.startswith("_pytest."):
                logger.removeHandler(handler)
