"""Handles an exception in an executor that no case raised: finds the code that raised it, and reports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Imported by name: a case may have replaced the attributes of the module.
from os import _exit
from traceback import format_exception, format_exception_only, walk_tb
from typing import NoReturn

from harness.core.plain_values import safe_repr
from harness.core.text import single_line, truncate_middle
from harness.protocol.endings import RemoteFailure, as_message
from harness.protocol.exit_status import EXIT_HARNESS_ERROR
from harness.protocol.wire import Channel

#: Characters kept of a traceback.
_MOST = 32 << 10


def describe_exception(error: BaseException) -> RemoteFailure:
    """Return an exception in one line, and its traceback."""
    try:
        line, text = "".join(format_exception_only(error)), "".join(format_exception(error))
    except Exception:  # noqa: BLE001 - the traceback's lines are read by code that a case may have replaced
        line = text = safe_repr(error)
    return RemoteFailure(single_line(line) or type(error).__name__, truncate_middle(text, _MOST))


def is_raised_by_other_plugin(error: BaseException) -> bool:
    """Return whether a hook of a conftest or of another plugin raised an exception that came out of a hook call."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return is_other_plugin_traceback([frame.f_globals.get("__name__", "") for frame in frames])


def is_other_plugin_traceback(modules: Sequence[str]) -> bool:
    """Return the same for the modules of the traceback's frames, outermost first.

    The last hook call decides: its frame follows the last frame of pluggy. Frames below belong to that hook, because
    libraries such as torch and json raise in calls from the harness as well as from other plugins.
    """
    calls = [position for position, module in enumerate(modules) if _package(module) == "pluggy"]
    if not calls:
        return False
    below = modules[calls[-1] + 1 :]
    return not below or _package(below[0]) != "harness"


def _package(module: str) -> str:
    return module.partition(".")[0]


def report_error_and_exit(error: BaseException, channel: Channel) -> NoReturn:
    """Report an exception of the harness's own code to the supervisor, and exit.

    The report uses the channel, which works even if the executor's files cannot be written, for example on a full disk.
    """
    try:
        channel.send(as_message(describe_exception(error)))
    except OSError:  # the supervisor is gone
        sys.excepthook(type(error), error, error.__traceback__)
    _exit(EXIT_HARNESS_ERROR)
