"""The messages that the controller sends to an xdist worker at its start, and those that the worker sends at its end.

xdist transports both as dictionaries: ``workerinput`` and ``workeroutput``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

#: The key of the run context in ``workerinput``. Without it, a worker has no cases.
CONTEXT_KEY = "harness_context"
#: The key of the leased device's UUID in ``workerinput``.
DEVICE_KEY = "harness_device"
_LATE = "harness_late"
_FAILURE = "harness_failure"
_USAGE = "harness_usage"
_FAILED = "harness_failed"


def send_late_report(config: pytest.Config, report: pytest.TestReport) -> None:
    """Add a report on a case that has ended: xdist accepts reports only on the running case."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    config.workeroutput.setdefault(_LATE, []).append(data)  # type: ignore[attr-defined]


def send_write_failure(config: pytest.Config, problem: str) -> None:
    """Report a file that this worker cannot write."""
    config.workeroutput[_FAILURE] = problem  # type: ignore[attr-defined]


def send_failed(config: pytest.Config, count: int) -> None:
    """Report the failures that code in an executor added to ``session.testsfailed``.

    Does nothing outside an xdist worker.
    """
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[_FAILED] = output.get(_FAILED, 0) + count


def send_usage_error(config: pytest.Config, error: pytest.UsageError) -> None:
    """Report why this worker cannot collect the arguments, since xdist drops the error of a worker."""
    config.workeroutput[_USAGE] = [str(argument) for argument in error.args]  # type: ignore[attr-defined]


def late_reports_of(node: Any) -> Iterator[pytest.TestReport]:
    """Yield the late reports of an xdist worker that has ended."""
    for data in getattr(node, "workeroutput", {}).get(_LATE, ()):
        report = node.config.hook.pytest_report_from_serializable(config=node.config, data=data)
        report.node = node  # as xdist does, for plugins that read the worker from a report
        yield report


def write_failure_of(node: Any) -> str | None:
    """Return the text about a file that an xdist worker could not write, or None."""
    problem: str | None = getattr(node, "workeroutput", {}).get(_FAILURE)
    return problem


def failed_of(node: Any) -> int:
    """Return the number of failures that code in the executors of an xdist worker added to ``session.testsfailed``."""
    count: int = getattr(node, "workeroutput", {}).get(_FAILED, 0)
    return count


def usage_error_of(node: Any) -> tuple[str, ...]:
    """Return the lines about arguments that an xdist worker could not collect; empty if there are none."""
    return tuple(getattr(node, "workeroutput", {}).get(_USAGE, ()))
