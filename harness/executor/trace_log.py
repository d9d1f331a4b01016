"""The trace log of torch's compiler, which it writes if any handler is attached."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

#: Torch's trace logger, which does not propagate to its parent loggers.
TRACE_LOGGER = "torch.__trace"


class TraceLogMuted:
    """A plugin that removes pytest's log handlers from the trace logger while a case runs.

    pytest (observed with 9.2) attaches handlers to all loggers that do not propagate. Torch writes the trace as soon as
    a handler is attached, whatever the level. The trace takes a fifth of the time of cases that compile, and puts
    hundreds of useless lines into the report of each failure. Handlers of torch itself (`TORCH_TRACE`) or of a case
    stay.
    """

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's wrappers, which attach the handlers
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        remove_pytest_handlers()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        remove_pytest_handlers()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        remove_pytest_handlers()
        return (yield)


def remove_pytest_handlers() -> None:
    """Remove pytest's handlers from the trace logger. pytest also removes them at the end of the phase."""
    logger = logging.Logger.manager.loggerDict.get(TRACE_LOGGER)
    if isinstance(logger, logging.Logger):
        for handler in logger.handlers[:]:
            if type(handler).__module__.startswith("_pytest."):
                logger.removeHandler(handler)
